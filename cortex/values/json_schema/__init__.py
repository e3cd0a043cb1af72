"""JSON Schema 2020-12 as checks of plain data: keywords and formats."""
