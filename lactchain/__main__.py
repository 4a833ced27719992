"""`python -m lactchain`: the command of that name."""

from lactchain.command import main

if __name__ == "__main__":
    main()
