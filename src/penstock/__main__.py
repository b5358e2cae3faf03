"""`penstock` and `python -m penstock`. Ctrl-C while the command line is still being loaded is no error."""


def main() -> None:
    """Load the command line, and run it."""
    try:
        from penstock.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
