"""inspect_ai: a task whose samples are one `generate` each, without scorer or display.

https://inspect.aisi.org.uk/parallelism.html (`max_connections`, `max_samples`), .../eval-logs.html#log-buffer and
.../errors-and-limits.html#eval-retries: the log of a killed run keeps the samples written to it; `eval_retry` asks for
the rest. A model that answers at once is its own `mockllm`.
"""

import os
from typing import Any

import common
import inspect_ai
from inspect_ai import Task, eval_retry, task
from inspect_ai.dataset import Sample
from inspect_ai.log import list_eval_logs
from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate

os.environ["ANTHROPIC_API_KEY"] = common.KEY
GIVEN = common.given()


@task
def bench() -> Task:
    """Return the task: a sample a call."""
    samples = [Sample(input=common.prompt(number), id=number) for number in range(GIVEN.calls)]
    return Task(dataset=samples, solver=generate())


def echo(messages: list[ChatMessage], tools: Any, choice: Any, config: Any) -> ModelOutput:
    """Return the answer to the end of the prompt."""
    output = ModelOutput.from_content("mockllm/model", common.instant(int(messages[-1].text[-6:])))
    output.usage = ModelUsage(input_tokens=40, output_tokens=4, total_tokens=44)  # otherwise counted by inspect_ai
    return output


def main() -> None:
    """Run one evaluation."""
    if GIVEN.work == "null":
        model = get_model("mockllm/model", custom_outputs=echo)
    else:
        model = get_model(f"anthropic/{common.MODEL}", base_url=GIVEN.url, streaming=False)
    logs = str(GIVEN.state / "logs")
    options: dict[str, Any] = {
        "display": "none", "log_level": "error", "score": False, "max_connections": GIVEN.at_once,
        "max_retries": 0, "log_dir": logs,
    }  # fmt: skip
    killed = list_eval_logs(logs) if (GIVEN.state / "logs").exists() else []
    began = common.Began()
    if killed:
        ended = eval_retry(killed, **options)[0]
    else:
        ended = inspect_ai.eval(
            bench(), model=model, max_samples=GIVEN.at_once, max_tokens=common.OUTPUT_TOKENS_MAX, ctl_server=False,
            log_realtime=False, **options,
        )[0]  # fmt: skip
    answers = [(int(sample.id), sample.output.completion) for sample in ended.samples or []]
    common.told(answers, GIVEN.calls, began, starts=True)


if __name__ == "__main__":  # `eval_retry` reads this file again for the task of a log
    main()
