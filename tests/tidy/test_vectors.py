"""Every numbered vector of the requirements has a test, or a reason beside its number."""

from collections import Counter
from pathlib import Path

import pytest

from tests.numbered import NOT_YET, OVERRULED, called, every_number, marked, proof_of, proofs
from tests.tidy.tree import ROOT, refuse

TESTS = ROOT / "tests"


def test_every_vector_has_a_test() -> None:
    tested = {number for proof in proofs(TESTS) for number in proof.numbers}

    refuse(f"{called(number)} has no test" for number in sorted(every_number() - tested - NOT_YET.keys()))
    refuse(f"{called(number)} has a test now: take it off the list" for number in sorted(tested & NOT_YET.keys()))
    refuse(f"{called(number)} is no vector" for number in sorted(tested - every_number()))


def test_an_overruled_vector_is_proven_by_a_test_of_the_decision() -> None:
    decided = {number for proof in proofs(TESTS) if proof.decided for number in proof.numbers}

    refuse(f"{called(number)}: no test_…_decided_…" for number in sorted(OVERRULED - decided))
    refuse(f"{called(number)} is not overruled, so nothing was decided" for number in sorted(decided - OVERRULED))


def test_a_test_is_counted_once() -> None:
    refuse(name for name, count in Counter(proof.name for proof in proofs(TESTS)).items() if count > 1)


@pytest.mark.parametrize(
    ("file", "function", "numbers"),
    [
        ("test_fuse_gpus.py", "test_fuse_v11_cards", {("fuse", 11)}),
        ("test_walk.py", "test_atlas_v22_v23_full", {("atlas", 22), ("atlas", 23)}),
        ("test_shakenfist_ledger.py", "test_v7_fits", {("shakenfist", 7)}),
        ("test_fuse_words.py", "test_fuse_v05_scores", {("fuse", 5)}),
    ],
)
def test_a_name_says_its_numbers(file: str, function: str, numbers: set[tuple[str, int]]) -> None:
    proof = proof_of(Path(file), function)

    assert proof is not None
    assert proof.numbers == numbers


@pytest.mark.parametrize(
    "function", ["test_v7_fits", "test_bug_b02_ranks", "test_fuse_section_7_labels", "test_fuse_v"]
)
def test_a_name_without_a_number_or_a_document_proves_none(function: str) -> None:
    assert proof_of(Path("test_walk.py"), function) is None


ONE_OF_TWO = """\
import pytest

def test_fuse_v1_a() -> None: ...

@pytest.mark.vectors
def test_fuse_v2_b() -> None: ...
"""


def test_only_marked_tests_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(ONE_OF_TWO)
    (tmp_path / "test_both.py").write_text(f"{ONE_OF_TWO}\npytestmark = pytest.mark.vectors\n")

    assert [len(list(marked(tmp_path / name))) for name in ("test_one.py", "test_both.py")] == [1, 2]
