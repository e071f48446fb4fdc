"""What is kept of generations that are over: written with the plan that ends them, bounded, and read by nobody else."""

from __future__ import annotations

from easyscale.coordinator import keys, past, records
from easyscale.coordinator.kv import Put
from pictures import SOON, Board, Story


def kept(board: Board) -> list[records.Generation]:
    return past.read(board.kv, "job")


def test_a_generation_that_ends_is_kept_with_its_members_and_the_steps_it_made(story: Story) -> None:
    story.running("a", "b", held=10)
    story.progress(25, started=10)
    story.report("b", "died")
    assert any("generation 2 is a[0:4]" in line for line in story.decide(SOON))
    (generation,) = kept(story)
    assert (generation.generation, generation.first, generation.last) == (1, 10, 25)
    assert [(m.worker, m.first, m.last) for m in generation.members] == [("a", 0, 2), ("b", 2, 4)]


def test_the_newest_word_of_any_member_counts(story: Story) -> None:
    story.running("a", "b")
    story.progress(25)
    story.worker("a", "running", step=31)
    story.report("b", "died")
    story.decide(SOON)
    assert kept(story)[0].last == 31


def test_what_was_told_of_an_older_generation_says_nothing_of_this_one(story: Story) -> None:
    story.running("a", "b", held=7)
    story.put(keys.progress("job"), records.Progress(step=99, started=3, generation=0))
    for worker in "ab":
        story.worker(worker, "running")
    story.report("b", "died")
    story.decide(SOON)
    assert (kept(story)[0].first, kept(story)[0].last) == (7, 7), "what its members claimed with"


def test_a_generation_that_nobody_claimed_has_no_steps(story: Story) -> None:
    for worker in "ab":
        story.worker(worker)
        story.put(keys.assigned(worker), "job")
    story.plan(1, "a", "b")
    story.report("b", "died")
    story.decide(SOON)
    assert (kept(story)[0].first, kept(story)[0].last) == (None, None)


def test_only_the_newest_generations_are_kept(story: Story) -> None:
    first = records.Generation(generation=1, first=0, last=1)
    story.put(keys.past("job", 1), first)
    story.put(keys.past("job", 2), first)
    story.worker("a", "running")
    story.put(keys.assigned("a"), "job")
    story.plan(past.KEPT_GENERATIONS + 1, "a")
    story.claims()
    story.report("a", "died")
    story.decide(SOON)
    assert sorted(entry.key for entry in story.kv.range(keys.PAST)) == [
        keys.past("job", 2),
        keys.past("job", past.KEPT_GENERATIONS + 1),
    ]


def test_the_coordinator_does_not_read_it(story: Story) -> None:
    story.put(keys.past("job", 1), records.Generation(generation=1, first=0, last=1))
    assert not [entry for entry in story.kv.range(keys.PREFIX) if entry.key.startswith(keys.PAST)]


def test_one_that_cannot_be_read_is_left_out(story: Story) -> None:
    story.kv.txn((), (Put(keys.past("job", 1), b"{"),))
    story.put(keys.past("job", 2), records.Generation(generation=2, first=0, last=1))
    assert [generation.generation for generation in kept(story)] == [2]
