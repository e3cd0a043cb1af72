"""Parts that the clients of message batches share: connections, exchanges, and batches made of uploaded files."""
