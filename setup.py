"""Build steps that pyproject.toml cannot express. Beam's --setup_file also needs this file."""

import gzip
import os
import re
import tarfile
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?://|#)([^)\s]+)\)")
_EPOCH = 315_532_800  # 1980-01-01, the earliest time that a zip file can store


def absolute_readme() -> str:
    """Returns the text of README.md with absolute links, because relative links do not work on package indexes."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    link = rf"\1\2{urls['Homepage']}/blob/main/\3)"
    picture = rf"\1\2{urls['Homepage']}/raw/main/\3)"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return _LINK.sub(lambda match: match.expand(picture if match[1] else link), text)


class ReproducibleSdist(sdist):
    """Builds a reproducible source distribution, whose timestamps are SOURCE_DATE_EPOCH if this variable is set."""

    def make_archive(self, base_name: str, format: str, root_dir: str | None = None, base_dir: str | None = None, **options: object) -> str:
        """Writes an archive of `base_dir` whose members are sorted, have the same timestamp and have no owner.

        Returns:
            The path of the archive.
        """
        time = int(os.environ.get("SOURCE_DATE_EPOCH", _EPOCH))
        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=time) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for member in sorted(Path(base_dir).rglob("*")):
                if member.is_file():
                    info = archive.gettarinfo(member)
                    info.mtime, info.uid, info.gid, info.uname, info.gname = time, 0, 0, "", ""
                    info.mode = 0o755 if info.mode & 0o100 else 0o644
                    info.type, info.linkname = tarfile.REGTYPE, ""  # Setuptools creates hard links.
                    info.size = member.stat().st_size
                    with member.open("rb") as content:
                        archive.addfile(info, content)
        return path


setup(
    cmdclass={"sdist": ReproducibleSdist},
    long_description=absolute_readme(),
    long_description_content_type="text/markdown",
)
