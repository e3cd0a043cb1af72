"""``cortex k8s render``: a job file becomes a RayJob; what cannot go to a cluster is one line, before anything is made."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

JOB = '''
input = "rows/tickets.csv"
output = "labels.csv"
model = "sim"
prompt = "@ask.txt"
state = "/elsewhere"
cluster = "local"
'''
CLUSTER = '''
kind: RayCluster
metadata: {name: cortex}
spec:
  enableInTreeAutoscaling: true
  autoscalerOptions: {version: v2}
  headGroupSpec: {template: {spec: {containers: [{name: ray-head, image: c:1}, {name: beside, image: b:1}], volumes: [{name: tmp}]}}}
  workerGroupSpecs:
    - groupName: branch
      replicas: 1
      minReplicas: 1
      maxReplicas: 5
      template: {spec: {containers: [{name: ray-worker, image: c:1}], initContainers: [{name: first, image: c:1}]}}
'''


@pytest.fixture
def job(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows").mkdir()
    Path("rows/tickets.csv").write_text("text\nhello\n")
    Path("ask.txt").write_text("Which?\n{{text}}\n")
    Path("My tickets.toml").write_text(JOB)
    Path("tickets.toml").write_text(JOB)
    Path("cluster.yaml").write_text(CLUSTER)
    Path("moving.yaml").write_text(CLUSTER.replace("c:1", "c:latest"))
    Path("two.yaml").write_text(f"{CLUSTER}---{CLUSTER.replace('name: cortex', 'name: other')}")
    Path("headless.yaml").write_text("kind: RayCluster\nspec: {}\n")
    return Path("tickets.toml")


def test_a_job_for_the_standing_cluster(cortex, job):
    done = cortex("k8s", "render", job)
    assert (done.code, done.said()) == (0, [
        "tickets.toml line 6: state is set by the cluster: ignored there",
        "tickets.toml line 7: cluster is set by the cluster: ignored there",
        "copy to /var/lib/cortex/files/tickets on the head first: tickets.toml rows/tickets.csv ask.txt",
    ])  # fmt: skip
    (made,) = yaml.safe_load_all(done.out)
    assert (made["kind"], made["metadata"]["name"], made["metadata"]["namespace"]) == ("RayJob", "tickets", "cortex")
    spec = made["spec"]
    assert spec["jobId"] == "tickets", "who submits it twice attaches: the job's name is the submission's id"
    assert spec["clusterSelector"] == {"ray.io/cluster": "cortex"}
    assert spec["backoffLimit"] == 0 and "suspend" not in spec and "shutdownAfterJobFinishes" not in spec
    words = shlex.split(spec["entrypoint"])
    assert words == [
        "cortex", "batch", "-f", "/var/lib/cortex/files/tickets/tickets.toml", "--job", "tickets",
        "--accept-partial", "--wait", "--json",
    ]  # fmt: skip
    assert subprocess.list2cmdline(words) == spec["entrypoint"], "Ray quotes it its own way for the head's shell"


def test_a_cluster_of_its_own_takes_the_files_along_and_may_wait_in_a_queue(cortex, job):
    job.write_text(JOB.replace('"rows/tickets.csv"', '"s3://b/in.csv"').replace('"labels.csv"', '"s3://b/out.csv"'))
    done = cortex("k8s", "render", job, "--cluster-of", "cluster.yaml", "--queue", "batch", "--namespace", "ours", "--image", "i:1")
    assert done.code == 0, done.said()
    files, made = yaml.safe_load_all(done.out)
    assert files["kind"] == "ConfigMap" and files["data"] == {"tickets.toml": job.read_text(), "ask.txt": "Which?\n{{text}}\n"}
    spec = made["spec"]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "batch"
    assert (spec["suspend"], spec["shutdownAfterJobFinishes"], spec["backoffLimit"]) == (True, True, 2)
    assert "clusterSelector" not in spec
    own = spec["rayClusterSpec"]
    assert own["enableInTreeAutoscaling"] is False and "autoscalerOptions" not in own
    assert [own["workerGroupSpecs"][0][name] for name in ("replicas", "minReplicas", "maxReplicas")] == [5, 5, 5]
    head = own["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["volumeMounts"] == [
        {"name": "job-files", "mountPath": "/var/lib/cortex/files/tickets", "readOnly": True}
    ]
    assert head["volumes"][-1] == {"name": "job-files", "configMap": {"name": "tickets-files"}}
    assert _images(spec) == ["i:1", "i:1", "b:1", "i:1", "i:1"], "Ray's, wherever it stands; what is beside it keeps its own"
    assert cortex("k8s", "render", job, "--cluster-of", "cluster.yaml").code == 0
    plain = list(yaml.safe_load_all(cortex("k8s", "render", job, "--cluster-of", "cluster.yaml").out))[1]["spec"]
    assert _images(plain) == ["c:1", "c:1", "b:1", "c:1", "c:1"], "the submitter has the cluster's"
    assert "suspend" not in plain and plain["rayClusterSpec"]["enableInTreeAutoscaling"] is True


def _images(spec: dict) -> list[str]:
    """Of the submitter, the head, and the first group."""
    own = spec["rayClusterSpec"]
    pods = [spec["submitterPodTemplate"], own["headGroupSpec"]["template"], own["workerGroupSpecs"][0]["template"]]
    return [each["image"] for pod in pods for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))]


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        ('job = "Tickets"', (), "--job 'Tickets': a RayJob's name begins with a letter, has only small letters, digits and dashes"),
        ('job = "' + "a" * 48 + '"', (), "and 47 of them at most"),
        ('input = "-"', (), "-: a job in a cluster reads and writes files there: name a file"),
        ('input = "../tickets.csv"', (), "../tickets.csv is not below the job file's folder, which goes to the cluster"),
        ('output = "~/labels.csv"', (), "~/labels.csv: a job in a cluster reads and writes files there"),
        ('modle = "x"', (), "tickets.toml line 1: unknown key 'modle': did you mean model?"),
        ("", (), "tickets.toml names neither an input nor a program: add one of the two"),
        ('input = "a.csv"', ("--queue", "q"), "--queue: Kueue suspends whole clusters"),
        ('input = "a.csv"', ("--files", "/my files"), "--files '/my files': the path passes through shells: use only letters, digits, dots"),
        ('input = "a.csv"', ("--files", "mine"), "--files 'mine': give the absolute path of the folder on the head"),
        ('input = "a.csv"', ("--files", "/a/../b"), "--files '/a/../b': the path passes through shells: use only letters, digits, dots"),
        ('input = "a.csv"', ("--namespace", "Ours"), "--namespace 'Ours' is no name in Kubernetes: use only small letters"),
        ('input = "a.csv"', ("--namespace", ""), "--namespace '' is no name in Kubernetes"),
        ('input = "a.csv"', ("--namespace", "a" * 64), " 63 of them at most"),
        ('input = "a.csv"', ("--to", "my_cluster"), "--to 'my_cluster' is no name in Kubernetes"),
        ('input = "a.csv"', ("--cluster-of", "cluster.yaml", "--queue", "Q q"), "--queue 'Q q' is no name"),
        ('input = "a.csv"', ("--to", "mine", "--cluster-of", "cluster.yaml"), "--to mine names an existing cluster, and --cluster-of creates a new one"),
        ('input = "a.csv"', ("--image", "Cortex:1"), "--image 'Cortex:1' is no image name"),
        ('input = "a.csv"', ("--image", "c:1 x"), "--image 'c:1 x' is no image name"),
        ('input = "a.csv"', ("--image", "r.example.com:5000/cortex"), "without a tag means :latest, which changes"),
        ('input = "a.csv"', ("--image", "cortex:latest"), "--image cortex:latest: the tag latest changes"),
        ('input = "s3://b/a"', ("--cluster-of", "moving.yaml"), "moving.yaml: image c:latest: the tag latest changes"),
        ('input = "s3://b/a"', ("--cluster-of", "two.yaml"), "two.yaml holds 2 RayClusters (cortex, other): give a file with one of them"),
        ('input = "s3://b/a"', ("--cluster-of", "headless.yaml"), "headless.yaml: its RayCluster has no head with a container"),
        ('input = "a.csv"', ("--cluster-of", "none.yaml"), "none.yaml cannot be read: No such file"),
        ('input = "a.csv"', ("--cluster-of", "tickets.toml"), "tickets.toml holds no RayCluster: give the output"),
        ('input = "a.csv"', ("--cluster-of", "cluster.yaml"), "tickets.toml line 1: a cluster of its own keeps no files: give input as s3://"),
        ('api-key-file = "key.txt"\ninput = "a.csv"', (), "tickets.toml line 1: api-key-file: a key is never sent with a job"),
        ('notify = "https://h/x"\ninput = "s3://b/a"', ("--cluster-of", "cluster.yaml"), "tickets.toml line 1: notify: its URL may be a secret"),
        ('input = "s3://b/a.csv"\nprompt = "@none.txt"', ("--cluster-of", "cluster.yaml"), "none.txt cannot go to the cluster: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_go_there_is_one_line(cortex, job, line, words, said):
    job.write_text(line + "\n")
    done = cortex("k8s", "render", job, *words)
    done.refused(said)
    assert done.out == ""


BATCH = 'input = "rows/tickets.csv"\noutput = "o.csv"\nmodel = "claude-haiku-4-5"\nprompt = "Which? {{text}}"\n'
RUN = 'program = "rlm"\ninputs = ["notes"]\nmodel = "sim"\n'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (BATCH + "max-cost = -1", "--max-cost: '-1': give an amount of USD above zero"),
        (BATCH + "max-output-tokens = 0", "Invalid value for '--max-output-tokens'"),
        (BATCH + "max-job-tokens = 100\nmax-output-tokens = 200", "--max-job-tokens 100 is too small for a reply"),
        (BATCH + 'deadline = "soon"', "--deadline"),
        (BATCH + "accept-failed = 2", "--accept-failed"),
        (BATCH + 'label = ["team"]', "--label"),
        (BATCH + "shards = 100000", "--shards"),
        (BATCH + 'via = "pigeon"', "--via 'pigeon'"),
        (BATCH + 'notify = "nowhere"', "--notify: give a whole URL"),
        (BATCH + 'limits = "mysql://h/d"', "--limits mysql://h/d: limits are shared in a database"),
        (BATCH + 'schema-as = "tool"', "--schema-as sets the form of --schema"),
        (BATCH + 'id = "nobody"', "rows/tickets.csv has no column 'nobody'"),
        (BATCH.replace("{{text}}", "{{txt}}"), "rows/tickets.csv has no column 'txt'"),
        (BATCH.replace('"o.csv"', '"o.xlsx"'), "o.xlsx"),
        (BATCH.replace('output = "o.csv"', ""), "Missing option '--output'"),
        (BATCH.replace("claude-haiku-4-5", "nobodys-model") + "max-cost = 5", "no price known for 'nobodys-model', so --max-cost cannot hold"),
        (BATCH + 'fallback = ["claude-haiku-4-5"]', "--fallback claude-haiku-4-5: this route is named twice"),
        (RUN + "rpm = 0", "--rpm"),
        (RUN + 'param = ["nothing=1"]', "-p nothing: rlm has no such parameter"),
        (RUN.replace('"rlm"', '"rlmm"'), "no program 'rlmm'"),
        (RUN.replace('"rlm"', '"rows/mine.py:None_"'), "mine.py has no None_"),
    ],
)  # fmt: skip
def test_what_the_command_refuses_is_refused_before_it_is_sent_there_in_the_same_words(cortex, job, lines, said, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("a")
    Path("rows/mine.py").write_text("import cortex\n")
    job.write_text(lines + "\n")
    done = cortex("k8s", "render", job)
    done.refused(said)
    assert done.out == "" and not Path(".cortex").exists()
    begun = cortex("run" if "program" in lines else "batch", "-f", job)
    assert said in begun.err, "that command has other words"


def test_what_only_the_cluster_has_is_left_to_it(cortex, job):
    job.write_text('program = "in_the_image:Flow"\ninput = ""\n'.replace('input = ""\n', "") + 'model = "m"\napi-key-file = "/etc/k"\n')
    done = cortex("k8s", "render", job)
    assert done.code == 0, done.err
    assert "cannot be imported: ModuleNotFoundError" in done.said()[0] and "on this machine: the cluster checks it again" in done.said()[0]
    job.write_text('input = "later.csv"\noutput = "o.csv"\nprompt = "{{a}}"\nmodel = "claude-haiku-4-5"\nmax-cost = 3\n')
    done = cortex("k8s", "render", job)
    assert (done.code, done.said()[-1]) == (0, "later.csv is not on this machine: it must be on the head when the job starts")


@pytest.mark.parametrize("image", ["cortex:0.1.0", "r.example.com:5000/a/b_c:1", f"c@sha256:{'a' * 64}", f"c:latest@sha256:{'a' * 64}"])
def test_names_of_images(cortex, job, image):
    (made,) = yaml.safe_load_all(cortex("k8s", "render", job, "--image", image, "--to", "our-cluster").out)
    assert made["spec"]["submitterPodTemplate"]["spec"]["containers"][0]["image"] == image
    assert made["spec"]["clusterSelector"] == {"ray.io/cluster": "our-cluster"}


def test_a_program_and_what_it_reads(cortex, job):
    job.write_text('program = "rows/mine.py:Flow"\ninputs = ["rows/tickets.csv", "/on/the/head.txt", "s3://b/x"]\nparam = ["a=@ask.txt", "b=@@x"]\njob = "mine"\n')
    done = cortex("k8s", "render", job)
    assert done.said().pop() == "rows/mine.py is not on this machine: it must be on the head when the job starts"
    assert done.said() == ["copy to /var/lib/cortex/files/mine on the head first: tickets.toml rows/mine.py rows/tickets.csv ask.txt"] or sorted(
        done.said()[0].split()[-4:]
    ) == sorted(["tickets.toml", "rows/mine.py", "rows/tickets.csv", "ask.txt"])
    (made,) = yaml.safe_load_all(done.out)
    assert made["spec"]["entrypoint"].startswith("cortex run -f /var/lib/cortex/files/mine/tickets.toml --job mine ")


def test_the_command_runs_where_the_files_are(cortex, job, tmp_path):
    """What the RayJob says, given as it stands to a shell: the job file means there what it meant here."""
    text = yaml.safe_load(cortex("k8s", "render", job, "--files", str(tmp_path / "there")).out)["spec"]["entrypoint"]
    there = tmp_path / "there" / "tickets"
    (there / "rows").mkdir(parents=True)
    for name in ("tickets.toml", "rows/tickets.csv", "ask.txt"):
        (there / name).write_text(Path(name).read_text())
    words = shlex.split(text)[1:]
    os.environ["CORTEX_CLUSTER"] = "inline"
    try:
        done = cortex(*words)
    finally:
        del os.environ["CORTEX_CLUSTER"]
    assert done.code == 0, done.said()
    assert len((there / "labels.csv").read_text().splitlines()) == 2
    assert not Path("/elsewhere").exists(), "the cluster's CORTEX_STATE wins"
