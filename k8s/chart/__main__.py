"""``python -m k8s.chart FOLDER``: write the chart into FOLDER/cortex, and FOLDER/cortex-VERSION.tgz. Needs kubectl."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from cortex import __version__
from k8s.chart.files import texts

folder = Path(sys.argv[1])
for name, text in texts().items():
    path = folder / "cortex" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
package = folder / f"cortex-{__version__}.tgz"
with tarfile.open(package, "w:gz") as file:  # what `helm package` makes
    file.add(folder / "cortex", "cortex")
print(package)
