"""The commands of ``cortex k8s``."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.options import Options, takes


@takes("verbose")
def render(
    options: Options,
    job_toml: Annotated[str, typer.Argument(help="a job file, as `-f` takes it", metavar="JOB.TOML")],
    cluster: Annotated[
        str, typer.Option("--to", help="the standing RayCluster that it goes to (default cortex)", metavar="NAME")
    ] = "",
    cluster_of: Annotated[
        str,
        typer.Option(
            "--cluster-of", help="make it a cluster of its own, like the one in this YAML; - for stdin", metavar="FILE"
        ),
    ] = "",
    queue: Annotated[str, typer.Option("--queue", help="Kueue's queue that it waits in", metavar="NAME")] = "",
    namespace: Annotated[str, typer.Option("--namespace", help="where it goes", metavar="NAME")] = "cortex",
    image: Annotated[
        str, typer.Option("--image", help="of the pod that submits it, and of a cluster of its own", metavar="IMAGE")
    ] = "",
    files: Annotated[
        str, typer.Option("--files", help="the folder on the head that has your files", metavar="FOLDER")
    ] = "/var/lib/cortex/files",
) -> int:
    """Print a job file as a RayJob for KubeRay: `cortex k8s render job.toml | kubectl apply -f -`."""
    from actors.cli.remote.rayjob_render import Place
    from actors.cli.remote.rayjob_render import render as show

    return show(
        job_toml,
        Place(cluster=cluster, cluster_of=cluster_of, queue=queue, namespace=namespace, image=image, files=files),
    )


COMMANDS = {"render": render}
