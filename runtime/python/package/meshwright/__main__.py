"""The command `meshwright`."""

import signal
import sys


def main() -> None:
    """Runs the command with the arguments of this process, and ends it with its exit code."""
    from meshwright import _native

    # Ctrl-C is the command's: the first ends a training with a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.command(["meshwright", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
