"""The rows of results/README.md: each fits its record, and each figure with a claim has one."""

from dataclasses import replace
from pathlib import Path

import pytest
from gyroscope_lab.framework.catalogue import catalogue
from gyroscope_lab.framework.claims import at_least, at_most
from gyroscope_lab.framework.evidence import HEADLINES, ROWS, EvidenceRow, Number, Verdict, fits
from gyroscope_lab.framework.results import ExperimentRecord
from gyroscope_lab.framework.results_pages import evidence_page

RESULTS = Path(__file__).parents[3] / "results"
ALL_ROWS = [row for rows in ROWS.values() for row in rows]


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.record)
def test_a_verdict_fits_the_numbers_beside_it(row):
    record = ExperimentRecord.read(RESULTS, row.record)
    sentences = {claim.sentence for claim in record.claims}
    assert {number.sentence for number in row.numbers} <= sentences
    assert all(number.text.count("{}") == 1 for number in row.numbers)
    assert fits(row, record.claims)


def test_every_experiment_of_a_paper_has_one_row_in_order():
    experiments = {entry.id for entry in catalogue().values() if entry.implemented and entry.id.split("/")[0] in ROWS}
    assert sorted(row.record for row in ALL_ROWS) == sorted(experiments)


def test_headlines_name_records_that_have_rows():
    assert len(HEADLINES) == 10
    assert {name for headline in HEADLINES for name in headline.records} <= {row.record for row in ALL_ROWS}


HOLDS = at_most("a", 1.0, [0.5])
FAILS = at_least("a", 1.0, [0.5])
UNDECIDED = at_most("a", 1.0, [0.5, 1.5])


@pytest.mark.parametrize(
    ("verdict", "claim", "expected"),
    [
        (Verdict.AS_IN_THE_PAPER, HOLDS, True),
        (Verdict.AS_IN_THE_PAPER, UNDECIDED, False),
        (Verdict.IN_PART, HOLDS, False),
        (Verdict.IN_PART, UNDECIDED, True),
        (Verdict.NOT_SEEN, HOLDS, False),
        (Verdict.NOT_SEEN, FAILS, True),
        (Verdict.CONTRADICTS, UNDECIDED, False),
        (Verdict.CONTRADICTS, FAILS, True),
    ],
)
def test_a_verdict_asks_for_outcomes(verdict, claim, expected):
    row = EvidenceRow("Figure 0", "re/fig0", "", verdict, (Number("{}", "a"),))
    assert fits(row, [claim]) == expected


def test_a_record_that_no_longer_fits_and_one_that_is_missing_show_a_question_mark():
    row = ALL_ROWS[0]
    record = ExperimentRecord.read(RESULTS, row.record)
    claims = [dict(claim, outcome="undecided") for claim in record.data["claims"]]
    changed = replace(record, data={**record.data, "claims": claims})
    for records in ({row.record: changed}, {}):
        line = next(line for line in evidence_page(records).splitlines() if row.claim in line)
        assert "| ? |" in line


def test_the_page_in_the_repository_is_the_one_that_its_records_give():
    records = {row.record: ExperimentRecord.read(RESULTS, row.record) for row in ALL_ROWS}
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == evidence_page(records)
