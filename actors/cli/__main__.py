"""Entry point of ``python -m actors.cli``."""

from actors.cli import main

if __name__ == "__main__":
    main()
