"""``python -m k8s.boards``: write the files in ``k8s/grafana`` and ``k8s/prometheus`` again."""

from __future__ import annotations

from k8s.boards.files import ROOT, texts

for name, text in texts().items():
    (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / name).write_text(text)
    print(name)
