"""The command line: what it prints, what it refuses, and its main job on the emulator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

import flashsmith
from build_helpers import make_compiler
from flashsmith import settings
from flashsmith.bench import Timing
from flashsmith.cli import app, gpus, job
from flashsmith.cli import build as build_command
from flashsmith.configs import DType, get_kernel_configs, parse_kernel_name_into_config
from flashsmith.errors import EmulatorFault, ToolchainError
from flashsmith.reference import compare, reference_attention
from flashsmith.selection import select_config
from problems import heed_interrupts

# The two kernels that are built here. FITTING is what `select_config` picks for SHAPE.
PLAIN = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
FITTING = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles+buffer+opt_softmax"
SHAPE = (1, 64, 2, 64)
RANDOM_INPUT = ("--batch", "1", "--seq-len", "64", "--heads", "2", "--device", "cpu")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The session's cache if it has one, and no other setting from outside."""
    with pytest.MonkeyPatch.context() as patch:
        for setting in settings.ALL:
            if setting not in (settings.CACHE_DIR, settings.JOBS):
                patch.delenv(setting.name, raising=False)
        if settings.CACHE_DIR.get() is None:
            patch.setenv(settings.CACHE_DIR.name, str(tmp_path_factory.mktemp("cache")))
        yield


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def invoke_json(*args: object, code: int = 0) -> Any:
    return json.loads(invoke(*args, "--json", code=code).stdout)


def refused(*args: object, code: int = 2) -> str:
    """The message of a command that fails; it has said nothing else and shown no traceback."""
    result = invoke(*args, code=code)
    assert result.stdout == ""
    before, _, message = result.stderr.rpartition("error: ")
    assert message
    assert "Traceback" not in result.stderr
    assert "error" not in before
    return message


def make_inputs(
    dtype: torch.dtype = torch.float16, shape: Sequence[int] = SHAPE
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(*shape, generator=generator).to(dtype) for name in "qkv"}


@pytest.fixture
def qkv(tmp_path: Path) -> Path:
    path = tmp_path / "qkv.safetensors"
    save_file(make_inputs(), path)
    return path


# The command as a whole.


def test_version_and_help_name_every_command() -> None:
    assert invoke("--version").stdout == f"flashsmith {flashsmith.__version__}\n"
    text = invoke("--help").stdout
    assert all(name in text for name in ("configs", "build", "run", "doctor", "cache"))


def test_module_runs_the_command() -> None:
    command = [sys.executable, "-m", "flashsmith", "configs", "prog", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["configs"]) == 7


def test_torch_is_loaded_only_where_it_is_needed() -> None:
    script = (
        "import sys\n"
        "from flashsmith.cli import app\n"
        "for args in (['--help'], ['configs', 'prog'], ['configs', '--built'],\n"
        f"             ['build', '--target', 'emulator', '-k', {PLAIN!r}]):\n"
        "    app(args, standalone_mode=False)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "args", [("nothing",), ("configs", "--nothing"), ("build", "--jobs", "0"), ("build", "-k")]
)
def test_wrong_usage_is_one_message(args: tuple[str, ...]) -> None:
    assert "--help" in refused(*args)


def test_debug_shows_where_an_error_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["--debug", "configs", "nothing"])
    assert isinstance(result.exception, ValueError)
    monkeypatch.setenv(settings.DEBUG.name, "1")
    result = CliRunner().invoke(app, ["configs", "nothing"])
    assert isinstance(result.exception, ValueError)
    monkeypatch.setenv(settings.DEBUG.name, "perhaps")
    assert settings.DEBUG.name in refused("configs")


def test_an_unforeseen_error_is_named_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(job, "choose_device", fail)
    assert "RuntimeError: out of memory (--debug" in refused("run", code=1)


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_a_missing_package_is_named_with_what_installs_it(package: str, qkv: Path) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"sys.argv[1:] = ['run', '--input', {str(qkv)!r}]\n"
        "from flashsmith.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    message = f"error: {package} is not installed; `pip install 'flashsmith[torch]'`\n"
    assert done.stderr == message


def test_interrupting_a_build_ends_it_with_130(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = make_compiler(tmp_path / "cxx", log, before="sleep 60")
    environment = {"FLASHSMITH_CACHE_DIR": str(tmp_path / "cache"), "FLASHSMITH_CXX": str(compiler)}
    command = [sys.executable, "-m", "flashsmith", "build", "--target", "emulator", "-k", PLAIN]
    with subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    ) as process:
        deadline = time.monotonic() + 20
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def test_a_closed_pipe_is_no_error() -> None:
    command = f"'{sys.executable}' -m flashsmith configs progall --all-blocks | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("| config")
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


# configs


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ((), 85),
        (("prog",), 7),
        (("progall",), 56),
        (("tune", "64,32"), 80),
        (("64,32", "128,32"), 32),
        (("tune", "--dtype", "BF16"), 40),
        (("tune", "--d-head", "64"), 80),
        (("prog", "--dtype", "15", "--d-head", "64"), 7),
        ((PLAIN, PLAIN), 1),
        (("prog", "--all-blocks", "--legal"), 56),
        (("prog", "--all-blocks", "--illegal"), 28),
        (("prog", "--illegal"), 0),
        (("prog", "--illegal", "--gpu", "sm_75"), 7),
        (("sm90-prog", "--legal"), 8),
        (("sm90-prog", "--dtype", "fp16", "--legal"), 8),
        (("sm90-prog", "--illegal", "--gpu", "sm_80"), 8),
        (("prog", "sm90-prog", "--legal"), 15),
    ],
)
def test_configs_lists_and_narrows_sets(args: tuple[str, ...], count: int) -> None:
    found = invoke_json("configs", *args)["configs"]
    assert len({entry["name"] for entry in found}) == len(found) == count
    for entry in found:
        config = parse_kernel_name_into_config(entry["name"])
        assert (entry["dtype"], entry["B_c"]) == (str(config.dtype), config.B_c)
        assert entry["legal"] == (entry["problems"] == [])
        if "--dtype" in args:
            asked = args[args.index("--dtype") + 1]
            assert entry["dtype"] == str(DType.from_string(asked))
        if "--d-head" in args:
            assert entry["d_head"] == 64


def test_configs_default_follows_KERNELS(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS", "prog")
    assert len(invoke_json("configs")["configs"]) == 7


def test_configs_into_a_pipe_are_whole_markdown_rows() -> None:
    lines = invoke("configs", "prog").stdout.splitlines()
    assert [parse_kernel_name_into_config(line) for line in lines[2:]] == get_kernel_configs("prog")
    too_old = invoke("configs", "prog", "--gpu", "sm_75").stdout
    assert too_old.count("sm_75 has compute capability 7.5; 8.0 or newer is needed.") == 7


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing",), "kernels key 'nothing' is not known; valid are prog"),
        (("(FP16, 128, 64, 64, 4): async+fast",), "'fast' is unknown"),
        (("(FP16, 64, 64, 4): async+load_0_0_0_tiles",), "pass d_head"),
        ((PLAIN, "--d-head", "128"), "says d_head 64, the argument d_head 128"),
        ((PLAIN, "--dtype", "bf16"), "is for FP16, not BF16"),
        (("--dtype", "fp8"), "dtype 'fp8' is not known; supported: FP16"),
        (("--d-head", "80"), "--d-head is 80; supported are 64, 96, 128, 192, 256"),
        (("sm90-prog", "--all-blocks"), "--all-blocks is for the sm80 family"),
        (("--gpu", "sm_999"), "gpu 'sm_999' is not known"),
        (("--built", "--legal"), "leave out --legal"),
    ],
)
def test_configs_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in refused("configs", *args)


# build and the cache


def test_build_reports_the_library_and_its_kernels() -> None:
    args = ("build", "--target", "emulator", "-k", PLAIN, "-k", FITTING)
    built = invoke_json(*args)
    (library,) = built["libraries"]
    assert Path(library).is_file()
    assert (built["target"], built["archs"]) == ("emulator", [])
    assert {row["kernel"] for row in built["kernels"]} == {PLAIN, FITTING}
    listed = invoke_json("configs", "--built", PLAIN)["kernels"]
    assert library in {row["library"] for row in listed}
    assert {row["kernel"].removesuffix(" causal") for row in listed} == {PLAIN}
    assert PLAIN not in {
        row["kernel"] for row in invoke_json("configs", "--built", "--d-head", "128")["kernels"]
    }
    again = invoke(*args)
    assert f"| {PLAIN} " in again.stdout
    assert library in again.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH")
def test_build_for_a_gpu_reports_what_ptxas_says() -> None:
    built = invoke_json("build", "--arch", "8.0", "-k", FITTING)
    (row,) = built["kernels"]
    assert (built["target"], built["archs"], row["arch"]) == ("cuda", ["sm_80"], "sm_80")
    assert 32 < row["registers"] <= 255
    assert row["spilled_bytes"] == 0
    assert row["shared_bytes"] == parse_kernel_name_into_config(FITTING).shared_memory_bytes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target", "tpu"), "target is 'tpu'; supported are 'cuda' and 'emulator'"),
        (("--arch", "sm_75"), "need compute capability 8.0"),
        (("--arch", "sm90"), "arch is 'sm90'; write it like 'sm_80'"),
        (("--target", "emulator", "--arch", "sm_80"), "the emulator has none"),
        (("--kernels", "nothing"), "kernels key 'nothing'"),
        (("--mask", "full,sliding"), "variant 'sliding' is not known; supported: full, causal"),
        (("--target", "emulator", "-k", PLAIN.replace("64, 4)", "64, 8)")), "cannot be built"),
    ],
)
def test_build_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in refused("build", *args)


def test_build_without_a_compiler_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSMITH_CXX", "/nowhere/c++")
    args = ("build", "--target", "emulator", "--force", "-k", PLAIN)
    assert "install g++" in refused(*args, code=1)


def test_target_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_nvcc() -> None:
        raise ToolchainError("none")

    def found(*capabilities: tuple[int, int]) -> Callable[[], tuple[list[gpus.Gpu], str]]:
        return lambda: ([gpus.Gpu("GPU", pair, "1 MiB", "1") for pair in capabilities], "")

    monkeypatch.setattr(build_command, "find_gpus", found((9, 0), (7, 5), (8, 6), (9, 0)))
    assert build_command.choose_target("cuda", []).archs == ("sm_86", "sm_90a")
    monkeypatch.setattr(build_command, "find_gpus", found((7, 5)))
    assert build_command.choose_target("cuda", []).archs == ("sm_80", "sm_90a")
    monkeypatch.setenv("FLASHSMITH_ARCH", "sm_89")
    assert build_command.choose_target("cuda", []).archs == ("sm_89",)
    assert build_command.choose_target(None, ["sm_90a,8.0"]).archs == ("sm_80", "sm_90a")
    monkeypatch.setattr(build_command, "find_cuda_toolkit", no_nvcc)
    assert build_command.choose_target(None, []).kind == "emulator"


def test_cache_is_cleared_only_when_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(root))
    assert invoke_json("cache", "path") == {"path": str(root)}
    assert invoke_json("cache", "clear")["entries"] == 0
    library = root / "libraries" / "some"
    library.mkdir(parents=True)
    (library / "flash_kernels.so").write_bytes(b"x" * 1000)
    mine = root / "notes.txt"
    mine.write_text("not the cache's")
    assert "--yes" in refused("cache", "clear")
    assert library.exists()
    cleared = invoke_json("cache", "clear", "--yes")
    assert (cleared["entries"], cleared["freed_bytes"]) == (1, 1000)
    assert not library.exists()
    assert mine.exists()


# run


def test_run_on_a_file_writes_what_the_reference_says(qkv: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.safetensors"
    report = invoke_json(
        "run", "--input", qkv, "--output", output, "--mask", "causal", "--device", "cpu"
    )
    (kernel,) = report["kernels"]
    assert kernel["kernel"] == f"{FITTING} causal"
    assert (report["ok"], report["device"], report["output"]) == (True, "cpu", str(output))
    inputs = make_inputs()
    q, k, v = inputs.values()
    assert str(select_config(q)) == FITTING
    written = load_file(output)
    assert list(written) == ["o"]
    exact = reference_attention(q, k, v, causal=True)
    low_precision = reference_attention(q, k, v, causal=True, compute=torch.float16)
    comparison = compare(written["o"], exact, low_precision)
    assert comparison.ok
    assert kernel["error"] == comparison.error
    # One head at a time, a half-precision product may be summed in another order.
    assert kernel["tolerance"] == pytest.approx(comparison.tolerance, rel=0.5)


def test_run_takes_shared_heads_and_other_lengths(tmp_path: Path) -> None:
    path, output = tmp_path / "qkv.safetensors", tmp_path / "o.safetensors"
    q = make_inputs(shape=(1, 50, 2, 64))["q"]
    k, v = list(make_inputs(shape=(1, 70, 1, 64)).values())[1:]
    save_file({"q": q, "k": k, "v": v}, path)
    report = invoke_json(
        "run", "--input", path, "--output", output, "--mask", "causal", "--device", "cpu"
    )
    assert (report["problem"]["seq_len_k"], report["problem"]["n_heads_kv"]) == (70, 1)
    assert report["kernels"][0]["kernel"] == f"{select_config(q, True, k=k)} causal"
    exact = reference_attention(q, k, v, causal=True)
    low_precision = reference_attention(q, k, v, causal=True, compute=torch.float16)
    assert compare(load_file(output)["o"], exact, low_precision).ok
    assert "takes k and v shaped as q" in refused("run", "--input", path, "-k", PLAIN)


def test_run_counts_what_each_kernel_did() -> None:
    report = invoke_json("run", *RANDOM_INPUT, "-k", PLAIN, "-k", FITTING)
    problem = report["problem"]
    assert (problem["batch"], problem["seq_len"], problem["n_heads"], problem["d_head"]) == SHAPE
    plain, fitting = report["kernels"]
    assert (plain["kernel"], fitting["kernel"]) == (PLAIN, FITTING)
    assert plain["error"] <= plain["tolerance"] < 0.01
    # 2 products of 64 x 64 x 64 for each of 2 heads, in mma of 16 x 8 x 16.
    assert plain["counts"]["mma"] == 2 * 2 * 64**3 // (16 * 8 * 16)
    conflicts = [
        kernel["counts"]["shared_wavefronts"] - kernel["counts"]["shared_wavefronts_ideal"]
        for kernel in report["kernels"]
    ]
    assert conflicts[0] > 0
    assert conflicts[1] == 0
    table = invoke("run", *RANDOM_INPUT, "-k", PLAIN, "-k", FITTING).stdout.splitlines()
    assert f" {conflicts[0]} |" in table[2]
    assert [parse_kernel_name_into_config(row).short_form() for row in table[2:]] == [
        PLAIN,
        FITTING,
    ]


def test_run_is_the_same_for_a_seed_and_another_for_another(tmp_path: Path) -> None:
    def output(seed: int) -> torch.Tensor:
        path = tmp_path / "o.safetensors"
        invoke("run", *RANDOM_INPUT, "--d-head", 64, "--seed", seed, "--output", path)
        o = load_file(path)["o"]
        path.unlink()
        return o

    assert torch.equal(output(0), output(0))
    assert not torch.equal(output(0), output(1))


def test_a_wrong_kernel_fails_the_run_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(cfg: object, q: Any, k: Any, v: Any, o: torch.Tensor, **_: object) -> None:
        o.copy_(reference_attention(q, k, v))
        o[0, 3, 1, 7] += 1

    monkeypatch.setattr(job, "forward", spoiled)
    output = tmp_path / "o.safetensors"
    args = ("run", *RANDOM_INPUT, "-k", FITTING, "--output", output)
    report = invoke_json(*args, code=1)
    assert (report["ok"], report["output"]) == (False, None)
    assert report["kernels"][0]["error"] == pytest.approx(1, abs=0.01)
    assert "(0, 3, 1, 7)" in report["kernels"][0]["worst"]
    assert not output.exists()
    assert "WRONG" in invoke(*args, code=1).stdout


def test_a_fault_is_a_wrong_kernel_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(cfg: object, *tensors: Any, **options: Any) -> object:
        if str(cfg) == PLAIN:
            raise EmulatorFault("a race at shared address 16")
        return flashsmith.forward(cfg, *tensors, **options)

    monkeypatch.setattr(job, "forward", faulty)
    report = invoke_json("run", *RANDOM_INPUT, "-k", PLAIN, "-k", FITTING, code=1)
    plain, fitting = report["kernels"]
    assert (plain["ok"], plain["error"], plain["worst"]) == (
        False,
        None,
        "a race at shared address 16",
    )
    assert fitting["ok"]


def test_times_become_rates_and_a_share_of_fa2(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, with the clock replaced: what is timed runs, and the arithmetic is right."""

    def fixed_times(candidates: dict[str, Callable[[], object]]) -> dict[str, Timing]:
        for candidate in candidates.values():
            candidate()
        return {name: Timing(2.0 if name == "fa2" else 4.0, 1, 9) for name in candidates}

    monkeypatch.setattr(job, "time_interleaved", fixed_times)
    inputs = job.Inputs(*make_inputs().values())
    config = parse_kernel_name_into_config(FITTING)
    for causal, flop in ((False, 4 * 2 * 64 * 64 * 64), (True, 2 * 2 * 64 * 64 * 64)):
        instances = [
            flashsmith.configs.ForwardKernelInstance(config, flashsmith.ForwardVariant(causal))
        ]
        results = [job.Result(FITTING, ok=True)]
        assert job.time_kernels(instances, inputs, results) == 2
        assert results[0].ms == 4
        assert results[0].tflops == pytest.approx(flop / 4e-3 / 1e12)
        assert results[0].fa2_percent == 50


@pytest.mark.parametrize(
    ("seq_len_k", "causal", "scores"),
    [(80, False, 64 * 80), (80, True, 64 * 64 / 2 + 16 * 64), (48, True, 48 * 48 / 2)],
)
def test_rates_of_other_lengths_count_what_is_seen(
    seq_len_k: int, causal: bool, scores: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        job, "time_interleaved", lambda runs: dict.fromkeys(runs, Timing(4.0, 1, 9))
    )
    q, (k, v) = torch.zeros(SHAPE).half(), torch.zeros(2, 1, seq_len_k, 1, 64).half()
    instance = flashsmith.configs.ForwardKernelInstance(
        select_config(q, k=k), flashsmith.ForwardVariant(causal)
    )
    result = job.Result("one", ok=True)
    assert job.time_kernels([instance], job.Inputs(q, k, v), [result]) is None  # FA2 is left out
    assert result.tflops == pytest.approx(4 * 2 * scores * 64 / 4e-3 / 1e12)
    assert result.fa2_percent is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-k", PLAIN, "--dtype", "bf16"), "is for FP16, not BF16"),
        (("-k", "tune"), "choose by --dtype"),
        (("-k", f"{PLAIN} causal"), "is causal; add --mask causal"),
        (("-k", PLAIN, "--seq-len", "96"), "96 is no multiple of B_r 64"),
        (("-k", "prog", "--output", "o.safetensors"), "takes the result of one kernel, and 7"),
        (("--output", "/nowhere/o.safetensors"), "--output /nowhere/o.safetensors cannot be"),
        (("--output", "/"), "--output / is not a file"),
        (("--input", "/nowhere/qkv"), "--input /nowhere/qkv: there is no such file"),
        (("--device", "tpu"), "--device is 'tpu'"),
        (("--batch", "0"), "--batch"),
    ],
)
def test_run_refuses(args: tuple[str, ...], message: str) -> None:
    assert message in refused("run", *args)


def test_run_refuses_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu runs the emulator" in refused("run", "--device", "cuda", code=1)


def test_run_refuses_an_option_that_the_file_settles(qkv: Path) -> None:
    message = refused("run", "--input", qkv, "--seq-len", 64, "--dtype", "fp16")
    assert "leave out --dtype, --seq-len" in message


def test_run_refuses_a_kernel_that_does_not_fit_the_file(tmp_path: Path) -> None:
    path = tmp_path / "qkv.safetensors"
    save_file(make_inputs(torch.bfloat16), path)
    assert "is for FP16, not BF16" in refused("run", "--input", path, "-k", PLAIN)
    save_file(make_inputs(shape=(1, 64, 2, 128)), path)
    assert "says d_head 64" in refused("run", "--input", path, "-k", PLAIN)


def test_run_refuses_to_build_when_building_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FLASHSMITH_BUILD", "off")
    unbuilt = PLAIN.replace("async+", "")
    assert "forbids to build" in refused("run", *RANDOM_INPUT, "-k", unbuilt, code=1)


def _without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (_without(make_inputs(), "k"), "has no tensor k; it has q, v"),
        (make_inputs(torch.float32), "q has dtype torch.float32; supported are float16"),
        (make_inputs() | {"v": make_inputs(torch.bfloat16)["v"]}, "v is torch.bfloat16"),
        (
            make_inputs() | {"k": torch.zeros(1, 64, 1, 64).half()},
            "v has shape (1, 64, 2, 64), but k",
        ),
        (make_inputs() | {"k": torch.zeros(1, 64, 3, 64).half()}, "the heads of q a multiple of"),
        (make_inputs() | {"k": torch.zeros(2, 64, 2, 64).half()}, "batch and d_head must be equal"),
        (make_inputs(shape=(64, 2, 64)), "q has shape (64, 2, 64); expected (batch, seq_len"),
        (make_inputs(shape=(0, 64, 2, 64)), "none of them 0"),
        (make_inputs(shape=(1, 64, 2, 80)), "d_head 80; supported are 64, 96, 128, 192, 256"),
    ],
)
def test_run_refuses_a_file_whose_tensors_are_wrong(
    tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "qkv.safetensors"
    save_file(tensors, path)
    assert message in refused("run", "--input", path)


def test_run_refuses_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "qkv.safetensors"
    path.write_bytes(b"not tensors")
    assert "cannot be read as safetensors" in refused("run", "--input", path)
