"""Commands of ``cortex k8s``."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.options import Options, takes


@takes("verbose")
def render(
    options: Options,
    job_toml: Annotated[str, typer.Argument(help="a job file, as `-f` takes it", metavar="JOB.TOML")],
    cluster: Annotated[
        str, typer.Option("--to", help="existing RayCluster that runs the job (default cortex)", metavar="NAME")
    ] = "",
    cluster_of: Annotated[
        str,
        typer.Option(
            "--cluster-of", help="create a cluster for the job, from the one in this YAML; - for stdin", metavar="FILE"
        ),
    ] = "",
    queue: Annotated[str, typer.Option("--queue", help="Kueue queue that the RayJob waits in", metavar="NAME")] = "",
    namespace: Annotated[str, typer.Option("--namespace", help="namespace of the RayJob", metavar="NAME")] = "cortex",
    image: Annotated[
        str, typer.Option("--image", help="image of the submitting pod and of --cluster-of's cluster", metavar="IMAGE")
    ] = "",
    files: Annotated[
        str, typer.Option("--files", help="folder on the head node that holds your files", metavar="FOLDER")
    ] = "/var/lib/cortex/files",
) -> int:
    """Print a job file as a RayJob for KubeRay: `cortex k8s render job.toml | kubectl apply -f -`."""
    from actors.cli.remote.rayjob_render import RayJobTarget
    from actors.cli.remote.rayjob_render import render as show

    return show(
        job_toml,
        RayJobTarget(
            cluster=cluster, cluster_of=cluster_of, queue=queue, namespace=namespace, image=image, files=files
        ),
    )


COMMANDS = {"render": render}
