"""The part of the build that pyproject.toml cannot describe: data files made from the commands."""

import sys
from pathlib import Path

from setuptools import setup  # first: it brings distutils

from distutils.command.install_data import install_data  # isort: skip

ROOT = Path(__file__).resolve().parent


class InstallData(install_data):
    """Installs the man pages and the completion of shells beside the files that are listed."""

    def run(self) -> None:
        sys.path[:0] = [str(ROOT), str(ROOT / "src")]
        from scripts import man_pages
        from skymount.cli.commands.install import completion

        made = ROOT / "build" / "share"
        made.mkdir(parents=True, exist_ok=True)
        pages = man_pages.write(made / "man")
        for section in sorted({page.suffix[1:] for page in pages}):
            files = [str(page) for page in pages if page.suffix == f".{section}"]
            self.data_files.append((f"share/man/man{section}", files))
        for shell, place in completion.PLACES.items():
            script = made / Path(place).name
            script.write_text(completion.script(shell))
            self.data_files.append((str(Path(place).parent), [str(script)]))
        super().run()


setup(cmdclass={"install_data": InstallData})
