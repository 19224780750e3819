"""`python -I -S .../sandbox`: see `program`."""

import os
import sys

if __name__ == "__main__":
    # Behind the standard library: nothing beside this package is taken for a module of Python's.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

    from mcp_runtime.sandbox.program import main

    sys.exit(main(sys.argv[1:]))
