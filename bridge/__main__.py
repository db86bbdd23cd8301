"""`python -m bridge`."""

from bridge.cli.main import main

if __name__ == "__main__":
    main()
