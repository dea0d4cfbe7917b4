"""Checks with auditwheel that a wheel runs on every Linux that its platform tag promises: python audit.py WHEEL."""

import subprocess
import sys

wheel = sys.argv[1]
# name-version-python-abi-platform.whl
tag = wheel.removesuffix(".whl").rpartition("-")[2]
if not tag.startswith("manylinux_2_"):
    sys.exit(f"{wheel} has the platform tag {tag}, not a manylinux tag")
shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
text = " ".join(shown.stdout.split())
if shown.returncode != 0:
    sys.exit(shown.stderr)
marker = "is consistent with the following platform tag: "
if marker not in text:
    sys.exit(text)
consistent = text.partition(marker)[2].split('"')[1]


def glibc(platform: str) -> tuple[int, int]:
    major, minor = platform.removeprefix("manylinux_").split("_")[:2]
    return int(major), int(minor)


if glibc(consistent) > glibc(tag):
    sys.exit(f"{wheel} is tagged {tag}, but needs {consistent}")
print(f"{tag}: auditwheel finds it consistent with {consistent}")
