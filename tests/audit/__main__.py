"""`python -m tests.audit`: ends with 1 if there is a secret or a vulnerability."""

from __future__ import annotations

import sys
from pathlib import Path

from common.errors import UnavailableError
from tests.audit.dependencies import vulnerabilities
from tests.audit.secrets import secrets, tracked

ROOT = Path(__file__).parent.parent.parent


def main() -> None:
    """Looks for both and says what it found."""
    found = secrets(ROOT)
    print(f"secrets: {len(found)} in {len(tracked(ROOT))} files")
    try:
        known = vulnerabilities(str(Path(sys.executable).parent / "pip-audit"), ROOT / "requirements.txt")
        print(f"dependencies: {len(known)} known vulnerabilities")
    except UnavailableError as error:
        known = []
        print(f"dependencies: {error}")
    print("".join(f"{line}\n" for line in [*found, *known]), end="")
    sys.exit(1 if found or known else 0)


if __name__ == "__main__":
    main()
