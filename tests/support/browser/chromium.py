"""Installs Debian's Chromium, and opens pages in it without a window.

    python tests/support/browser/chromium.py    as root on Debian; installs the package with apt

`make test-all` runs it if $GEAR_DATA_REQUIRE_BROWSER is set. Without root or apt it prints the reason and does nothing.
The tests are then skipped, or fail if they are required. An installed Chromium or Chrome is used as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: The environment variable that makes a missing browser an error.
REQUIRED = "GEAR_DATA_REQUIRE_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """Returns the path of an installed Chromium; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


def obstacle() -> str | None:
    """Returns the reason why this machine cannot install Chromium; None if it can."""
    if os.geteuid() != 0:
        return "not root"
    if not Path("/etc/debian_version").exists():
        return "not Debian"
    return None if shutil.which("apt-get") else "no apt-get"


def install() -> None:
    """Installs Debian's package."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (("update",), ("install", "-y", "--no-install-recommends", "chromium")):
        done = subprocess.run(["apt-get", "-qq", *command], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"apt-get {' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def browser() -> Iterator[Browser]:
    """Starts the installed Chromium without a window."""
    from playwright.sync_api import sync_playwright

    # Root has no user namespaces for the sandbox. The pages are the tests' own.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable(), args=[*options, "--disable-dev-shm-usage"])
        yield started
        started.close()


if __name__ == "__main__":
    reason = None if executable() else obstacle()
    if reason is None and executable() is None:
        install()
    sys.stdout.write(f"{executable()}\n" if reason is None else f"no tests of reports in a browser: {reason}\n")
