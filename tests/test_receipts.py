"""A lab's results survive a disconnect, a chat program, and a cell of a notebook."""

import base64
import json
import math
import re
import sys
import types
import zlib

import numpy as np
import pytest

from attncourse.lab import receipts
from attncourse.lab.audit import audit
from attncourse.lab.receipts import (
    DamagedReceipt,
    ForgedReceipt,
    ReceiptError,
    Recorder,
    decode,
    encode,
    load,
    wrap,
)

MACHINE = {
    "device": "cuda",
    "name": "Tesla T4",
    "capability": [7, 5],
    "memory_bytes": 15_828_320_256,
    "l2_bytes": 4_194_304,
    "threads": 2,
    "torch": "2.11.0+cu128",
    "python": "3.13.15",
    "cuda": "12.8",
    "label": "T4",
    "ceilings": None,
    "precision": "highest",
}


def point(name: str, n: int, samples: int = 30, seed: int = 0) -> dict:
    random = np.random.default_rng([seed, n, len(name)])
    seconds = 2e-9 * n**2 * random.lognormal(0, 0.03, samples)
    started = 1 + n / 50 + np.cumsum(2 * seconds + 2e-3)
    return {
        "name": name,
        "n": n,
        "seconds": seconds.tolist(),
        "clock": "events",
        "started": started.tolist(),
        "peak_bytes": 8_519_680 + 64 * n**2,
        "backend": "EFFICIENT",
        "dtype": "float16",
        "flops": 4.0 * 16 * n**2 * 64,
        "bytes": 192.0 * n**2,
        "error": None,
        "wall_over_cpu": 1.0,
        "reference_error": 0.00048828125,
    }


def a_record(configurations: int = 15, samples: int = 30, seed: int = 0) -> dict:
    names = ("naive", "efficient", "tiled")
    points = [
        point(names[i % 3], 256 * 2 ** (i // 3), samples, seed) for i in range(configurations)
    ]
    predictions = {"exponent": {"value": 2, "at": 0.5, "session": 1, "points": 0}}
    return {"lab": "lab2", "machine": MACHINE, "predictions": predictions, "points": points}


@pytest.fixture
def lab(tmp_path):
    return Recorder("lab2", tmp_path, MACHINE)


# The file


def test_a_restart_goes_on_where_it_stopped(tmp_path, lab, capsys):
    lab.predict("exponent", 2)
    lab.add(point("naive", 256))
    again = Recorder("lab2", tmp_path, MACHINE)  # the kernel died here
    assert "1 configurations" in capsys.readouterr().out
    assert again.done({"name": "naive", "n": 256})
    assert not again.done({"name": "naive", "n": 512})
    again.add(point("naive", 512))
    record = load(again.path)
    assert [p["n"] for p in record["points"]] == [256, 512]
    assert [p["session"] for p in record["points"]] == [0, 1]
    assert record == again.record() and record["predictions"]["exponent"]["value"] == 2


def test_every_point_is_on_disk_before_the_next_one_starts(lab, monkeypatch):
    synced = []
    monkeypatch.setattr(receipts.os, "fsync", synced.append)
    for n in 256, 512, 1024:
        lab.add(point("naive", n))
        assert len(load(lab.path)["points"]) == len(synced) == n.bit_length() - 8


@pytest.mark.parametrize("lost", [1, 5, 40])
def test_a_line_cut_off_by_a_disconnect_costs_that_point_alone(tmp_path, lab, lost):
    lab.add(point("naive", 256))
    lab.add(point("naive", 512))
    lab.path.write_bytes(lab.path.read_bytes()[:-lost])
    kept = [256, 512] if lost == 1 else [256]  # the line break alone is no loss to a reader
    assert [p["n"] for p in load(lab.path)["points"]] == kept
    again = Recorder("lab2", tmp_path, MACHINE)
    assert not again.done({"n": 512})
    again.add(point("naive", 512))
    assert [p["n"] for p in load(lab.path)["points"]] == [256, 512]


def test_a_broken_line_in_the_middle_is_named(lab):
    lab.add(point("naive", 256))
    lab.add(point("naive", 512))
    lines = lab.path.read_text().splitlines()
    lines[1] = lines[1][:50]
    lab.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ReceiptError, match=r"line 2 of .* measure its configuration again"):
        load(lab.path)


def test_a_line_changed_by_hand_is_told(lab):
    lab.add(point("naive", 256))
    text = lab.path.read_text()
    lab.path.write_text(text.replace('"EFFICIENT"', '"FLASH"'))
    record = load(lab.path)
    assert record["points"][0]["edited"] is True
    assert "edited" in {finding.name for finding in audit(record)}


def test_a_deleted_line_is_no_crime(lab):
    lab.add(point("naive", 256))
    lab.add(point("naive", 512))
    lines = lab.path.read_text().splitlines(keepends=True)
    lab.path.write_text(lines[0] + lines[2])
    (left,) = load(lab.path)["points"]
    assert left["n"] == 512 and "edited" not in left


def test_measured_again_the_later_one_counts(lab):
    lab.add(point("naive", 256, seed=0))
    lab.add(point("naive", 256, seed=1) | {"backend": "MATH"})
    (kept,) = lab.record()["points"]
    assert kept["seconds"] == point("naive", 256, seed=1)["seconds"] and kept["attempts"] == 2
    assert load(lab.path) == lab.record()


def test_each_machine_has_its_own_file(tmp_path, lab):
    cpu = Recorder("lab2", tmp_path, MACHINE | {"label": "CPU, 1 thread"})
    newer = Recorder("lab2", tmp_path, MACHINE | {"torch": "2.13.0"})
    assert len({lab.path, cpu.path, newer.path}) == 3
    assert lab.path.name == "lab2.T4-torch-2.11.0+cu128.jsonl"


def test_predictions_made_before_measuring_stay(lab, capsys):
    lab.predict("exponent", 1)
    lab.predict("exponent", 2)  # nothing is measured yet
    lab.add(point("naive", 256))
    lab.predict("exponent", 2)  # the cell is run again
    assert capsys.readouterr().out == ""
    lab.predict("exponent", 3)
    assert "stays" in capsys.readouterr().out
    lab.predict("crossover", 1024)
    made = lab.record()["predictions"]
    assert list(made) == ["exponent", "crossover"]
    assert made["exponent"]["value"] == 2 and made["exponent"]["points"] == 0
    assert made["crossover"]["points"] == 1 and made["crossover"]["at"] >= made["exponent"]["at"]
    assert load(lab.path) == lab.record()
    assert "predicted_afterwards" in {finding.name for finding in audit(lab.record())}


def test_ceilings_are_kept_over_a_restart(tmp_path, lab):
    lab.ceilings(flops_per_second={"float16": 24e12}, bytes_per_second=260e9)
    again = Recorder("lab2", tmp_path, MACHINE)
    for record in lab.record(), again.record(), load(again.path):
        assert record["machine"]["ceilings"]["bytes_per_second"] == 260e9


def test_the_default_machine_is_this_one(tmp_path):
    record = Recorder("lab2", tmp_path / "new" / "folder").record()
    assert record["machine"]["device"] in ("cpu", "cuda") and record["machine"]["torch"]


def test_a_result_that_is_not_a_number_is_remembered(lab):
    lab.add(point("naive", 256) | {"reference_error": math.nan})
    (kept,) = load(lab.path)["points"]
    assert kept["reference_error"] is None and kept["not_finite"] == ["reference_error"]
    assert "wrong_result" in {finding.name for finding in audit(lab.record())}


@pytest.mark.parametrize(
    "change, says",
    [
        ({"name": None}, '"name"'),
        ({"seconds": [1.0, math.nan], "started": None}, "finite"),
        ({"seconds": [0.1]}, "30 start times for 1 samples"),
        ({"peak_bytes": "12 MB"}, "peak_bytes.* not a number"),
        ({"n": object()}, "plain data"),
    ],
)
def test_what_is_no_point_is_refused_before_it_is_written(lab, change, says):
    before = lab.path.read_text()
    with pytest.raises(ValueError, match=says):
        lab.add(point("naive", 256) | change)
    assert lab.path.read_text() == before and lab.record()["points"] == []


def test_the_record_is_a_copy(lab):
    lab.add(point("naive", 256))
    lab.record()["points"].clear()
    assert len(lab.record()["points"]) == 1


def test_the_end_of_the_block_prints_the_file_and_the_receipt(tmp_path, capsys):
    with Recorder("lab2", tmp_path, MACHINE) as lab:
        lab.add(point("naive", 256))
    printed = capsys.readouterr().out
    assert str(lab.path) in printed
    namespace = {}
    exec(printed[printed.index("RECEIPT") :], namespace)
    assert decode(namespace["RECEIPT"])["points"][0]["n"] == 256


def test_an_error_in_the_block_says_that_nothing_is_lost(tmp_path, capsys):
    with pytest.raises(KeyError), Recorder("lab2", tmp_path, MACHINE) as lab:
        lab.add(point("naive", 256))
        raise KeyError("oops")
    assert "is kept" in capsys.readouterr().out


def test_on_colab_the_file_is_downloaded(lab, monkeypatch):
    downloads = []
    google, colab = types.ModuleType("google"), types.ModuleType("google.colab")
    colab.files = types.SimpleNamespace(download=downloads.append)
    monkeypatch.setitem(sys.modules, "google", google)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    lab.save()
    assert downloads == [str(lab.path)]


# The receipt


def test_fifteen_configurations_of_thirty_samples_fit_into_a_cell():
    receipt = encode(a_record(15, 30))
    assert receipt.startswith("attn1:") and len(receipt) <= 4096
    assert "samples" not in decode(receipt)["points"][0]


@pytest.mark.parametrize("seed", range(5))
def test_a_receipt_keeps_what_was_measured(seed):
    record = a_record(seed=seed)
    again = decode(encode(record))
    for was, came in zip(record["points"], again["points"], strict=True):
        noise = np.median(np.abs(np.diff(was["seconds"])))
        assert np.allclose(was["seconds"], came["seconds"], rtol=0, atol=noise / 20)
        assert np.allclose(np.diff(was["started"]), np.diff(came["started"]), rtol=0.1, atol=0)
        assert np.median(came["seconds"]) == pytest.approx(np.median(was["seconds"]), rel=2e-3)
        for key in was.keys() - {"seconds", "started"}:
            assert came[key] == was[key]
    assert again["machine"] == record["machine"]
    assert again["predictions"] == record["predictions"]


def test_a_receipt_of_a_receipt_is_the_same():
    once = decode(encode(a_record()))
    assert decode(encode(once)) == once


def test_samples_have_three_significant_digits_however_noisy_and_more_if_the_noise_leaves_them():
    steady = a_record(1)
    steady["points"][0]["seconds"] = [5e-3 + 1e-8 * (i % 7) for i in range(30)]
    wild = a_record(1)
    wild["points"][0]["seconds"] = [5e-3 * (1 + i * 7 % 5) for i in range(30)]
    assert decode(encode(steady))["points"][0]["seconds"] == pytest.approx(
        steady["points"][0]["seconds"], abs=1e-9
    )
    assert decode(encode(wild))["points"][0]["seconds"] == pytest.approx(
        wild["points"][0]["seconds"], rel=1e-2
    )


def test_a_record_too_long_loses_samples_evenly_and_says_so(tmp_path, capsys):
    lab = Recorder("lab2", tmp_path, MACHINE)
    for each in a_record(15, 100)["points"]:
        lab.add(each)
    record = decode(lab.receipt())
    for came, was in zip(record["points"], lab.record()["points"], strict=True):
        assert came["samples"] == 100 and 20 <= len(came["seconds"]) < 100
        assert len(came["started"]) == len(came["seconds"])
        assert came["seconds"][0] == pytest.approx(was["seconds"][0], rel=1e-2)
        assert came["seconds"][-1] == pytest.approx(was["seconds"][-1], rel=1e-2)
    assert len(lab.receipt()) <= 4096
    lab.save()
    assert "of 100 samples" in capsys.readouterr().out
    assert len(load(lab.path)["points"][0]["seconds"]) == 100


@pytest.mark.slow
def test_far_too_many_configurations_are_pointed_to_the_file(lab, capsys):
    for n in range(256, 356):
        lab.add(point("naive", n))
    with pytest.raises(ValueError, match=r"hand in the \.jsonl file"):
        encode(lab.record())
    lab.save()
    assert "hand in the .jsonl file" in capsys.readouterr().out


PASTES = {
    "wrapped": wrap,
    "the whole cell": lambda r: f'RECEIPT = """\n{wrap(r)}\n"""',
    "pieces of a string": lambda r: f'RECEIPT = ("{r[:90]}"\n    "{r[90:]}")',
    "curly quotes": lambda r: f"RECEIPT = “{r}”",
    "indented with tabs": lambda r: "\t" + wrap(r, 60).replace("\n", "\r\n\t"),
    "a chat's HTML": lambda r: r.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
    "quoted in a mail": lambda r: "> " + wrap(r).replace("\n", "\n> "),
    "with invisible marks": lambda r: (
        "\ufeff" + "\u200b".join(r[i : i + 50] for i in range(0, len(r), 50))
    ),
    "without its first letters": lambda r: wrap(r.removeprefix("attn1:")),
    "with a kind word": lambda r: f"Here it is:\n{r}\nThanks",
}


@pytest.mark.parametrize("paste", PASTES)
def test_a_receipt_survives(paste):
    for seed in range(10):
        record = a_record(6, seed=seed)
        assert decode(PASTES[paste](encode(record))) == decode(encode(record))


def test_no_wrapped_line_looks_like_a_command_of_a_notebook():
    for seed in range(30):
        lines = wrap(encode(a_record(6, seed=seed)), 40).split("\n")
        assert not any(line.startswith(("%", "!", "?", "#", ">")) for line in lines)


DAMAGES = {
    "cut off": (lambda r: r[: len(r) // 2], "cut off: .* of"),
    "a character changed": (
        lambda r: r[:500] + ("A" if r[500] != "A" else "B") + r[501:],
        "changed",
    ),
    "two characters swapped": (
        lambda r: re.sub(r"(?s)^(.{300}\w*)(\w)(?!\2)(\w)", r"\1\3\2", r),
        ".",
    ),
    "markdown ate the stars": (lambda r: r.replace("*", ""), "cut off"),
    "empty": (lambda r: "", 'begins with "attn1:"'),
    "never filled in": (lambda r: "…", "Run the measuring cell"),
    "its head changed": (lambda r: r.replace("attn1:", "attn1:x"), "beginning"),
    "from the future": (lambda r: r.replace("attn1:", "attn2:"), "update"),
    "a novel": (lambda r: "x" * 100_000, "paste only"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_paste_says_what_to_do(damage):
    change, says = DAMAGES[damage]
    with pytest.raises(DamagedReceipt, match=says):
        decode(change(encode(a_record(6))))


def seal(text: bytes) -> str:
    """What a forger would do: a perfect envelope around anything."""
    packed = zlib.compress(text)
    body = base64.b85encode(packed).decode()
    return f"attn1:{len(body)}:{zlib.crc32(packed):08x}:{body}"


def sealed(**changes) -> str:
    return seal(json.dumps(a_record(1) | {"points": []} | changes).encode())


FORGERIES = {
    "not JSON": seal(b"import os"),
    "a list": seal(b"[]"),
    "no points": sealed(points=None),
    "no machine": sealed(machine="T4"),
    "not a number": seal(b'{"lab": "x", "machine": {}, "predictions": {}, "points": [NaN]}'),
    "infinity": sealed(points=[{"name": "a", "flops": 10**400}]),
    "times as text": sealed(points=[{"name": "a", "seconds": [3, "1", 2]}]),
    "times unpacked": sealed(points=[{"name": "a", "seconds": [0.1, 0.2, 0.3]}]),
    "endless digits": sealed(points=[{"name": "a", "seconds": [10**9, 1, 1]}]),
    "nested": seal(b"[" * 100_000 + b"]" * 100_000),
    "nested inside": sealed(machine={"a": [[[[[[[1]]]]]]]}),
    "a long string": sealed(lab="x", machine={"name": "y" * 10_000}),
    "a thousand points": sealed(points=[{"name": "a"}] * 1000),
    "a long list": sealed(points=[{"name": "a", "seconds": [3, 1] + [0] * 5000}]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_told_from_a_damaged_paste(forgery):
    with pytest.raises(ForgedReceipt, match=r"no lab writes|not compressed"):
        decode(FORGERIES[forgery])


def test_a_zip_bomb_is_refused_without_unpacking_it():
    bomb = seal(b" " * 20_000_000)
    assert len(bomb) < receipts.MAX_TEXT
    with pytest.raises(ForgedReceipt, match="unpacks to more than"):
        decode(bomb)


def test_not_a_string_is_said():
    with pytest.raises(TypeError, match="a receipt is a string, not a NoneType"):
        decode(None)


def test_random_text_never_raises_anything_but_a_receipt_error():
    random = np.random.default_rng(0)
    good = encode(a_record(3))
    for _ in range(300):
        letters = list(good)
        for row in random.integers(0, len(letters), 3):
            letters[row] = chr(random.integers(32, 127))
        with pytest.raises(DamagedReceipt):
            decode("".join(letters)[: random.integers(0, len(letters))])
