"""Ray, one task a call. A task occupies a process while it runs, so as many run at once as there are processes.

https://docs.ray.io/en/latest/ray-core/tasks.html; `num_cpus` below 1 for work that waits
(https://docs.ray.io/en/latest/ray-core/scheduling/resources.html#fractional-resource-requirements). A process keeps
its client from task to task, and asks with the SDK's synchronous client, since a task is a plain function.
"""

import time

import common
import ray

PROCESSES_A_CORE = 8


@ray.remote(max_retries=0)
def http(number: int, url: str) -> str:
    """Make one call."""
    return common.ask_plainly(url, number)


@ray.remote(max_retries=0)
def null(number: int, url: str) -> str:
    """Answer at once."""
    return common.instant(number)


@ray.remote
def ready(url: str) -> None:
    """Create a process's client."""
    common.sdk_plain(url)
    time.sleep(2.0)  # long enough that no process takes two of these


def main() -> None:
    """Submit all tasks and get all answers as one list."""
    given = common.given()
    processes = PROCESSES_A_CORE * given.cpus if given.work == "http" else given.cpus
    share = given.cpus / processes
    ray.get([ready.options(num_cpus=share).remote(given.url) for _ in range(processes)])
    task = (http if given.work == "http" else null).options(num_cpus=share)
    began = common.Began()
    answers = ray.get([task.remote(number, given.url) for number in range(given.calls)])
    common.told(enumerate(answers), given.calls, began)


ray.init(num_cpus=common.given().cpus, include_dashboard=False, log_to_driver=False)
main()
