"""`python -m rolloutlog`: the command line, where its script is not on the path."""

from rolloutlog.consumers.cli import main

if __name__ == "__main__":
    main()
