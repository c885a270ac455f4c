"""Sessions: found by their key alone, over in time, and told of once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gpuclaim.console.sessions import FullError, Session, Sessions


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class House:
    """Sessions of five minutes without a click, an hour at most, three at once, two of each."""

    clock: Clock = field(default_factory=Clock)
    over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions: Sessions[str] = Sessions(
            idle=300, longest=3600, most=3, each=2, clock=self.clock, ended=self._ended
        )

    def open(self, name: str) -> tuple[str, Session[str]]:
        return self.sessions.open(name, name)

    def _ended(self, session: Session[str]) -> None:
        self.over.append(session.visitor)


def test_a_session_is_found_by_its_key_and_by_nothing_else() -> None:
    house = House()
    key, session = house.open("anna")
    other, _ = house.open("ben")
    assert key != other
    assert len(key) >= 43, "256 bits"
    assert house.sessions.find(key) is session
    for wrong in ("", key[:-1], f"{key} ", session.csrf, "\udcff"):
        assert house.sessions.find(wrong) is None
    assert session.csrf not in {key, other}


def test_who_does_nothing_is_out() -> None:
    house = House()
    key, session = house.open("anna")
    house.clock.now += 299
    assert house.sessions.find(key) is session
    house.clock.now += 299
    assert house.sessions.find(key) is session
    house.clock.now += 300
    assert house.sessions.over(session)
    assert house.sessions.find(key) is None
    assert house.over == ["anna"]


def test_what_a_page_does_by_itself_keeps_nobody_in() -> None:
    house = House()
    key, session = house.open("anna")
    house.clock.now += 299
    assert house.sessions.find(key, touch=False) is session
    house.clock.now += 1
    assert house.sessions.find(key, touch=False) is None


def test_nobody_is_in_for_ever() -> None:
    house = House()
    key, _ = house.open("anna")
    for _ in range(14):
        house.clock.now += 250
        assert house.sessions.find(key) is not None
    house.clock.now += 100
    assert house.sessions.find(key) is None


def test_there_is_room_for_so_many_and_again_when_one_is_out() -> None:
    house = House()
    keys = [house.open(name)[0] for name in ("anna", "ben", "carla")]
    with pytest.raises(FullError, match="3 visitors are in"):
        house.open("dora")
    house.sessions.close(keys[1])
    house.open("dora")
    house.clock.now += 300
    house.open("eve")
    assert house.over == ["ben", "anna", "carla", "dora"]
    assert len(house.sessions) == 1


def test_the_end_is_told_once() -> None:
    house = House()
    key, session = house.open("anna")
    house.open("ben")
    house.sessions.close(key)
    house.sessions.close(key)
    assert session.ended
    house.clock.now += 300
    house.sessions.sweep()
    house.sessions.sweep()
    house.sessions.clear()
    assert house.over == ["anna", "ben"]


def test_who_comes_in_again_and_again_takes_nobody_elses_room() -> None:
    house = House()
    anna, _ = house.open("anna")
    first, _ = house.open("ben")
    house.clock.now += 1
    second, _ = house.open("ben")
    house.clock.now += 1
    assert house.sessions.find(first) is not None
    third, _ = house.open("ben")
    assert [house.sessions.find(key) is not None for key in (anna, first, second, third)] == [True, True, False, True]
    assert house.over == ["ben"]
