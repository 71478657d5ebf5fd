import asyncio

from vf_pipeline.environments import SingleTurnEnv, cleanup, stop, teardown

ROWS = [{"question": "a"}]


class Base(SingleTurnEnv):
    @stop
    def plain(self, state):
        return False

    @stop(priority=10)
    async def first(self, state):
        return False

    @cleanup
    def tidy(self, state):
        state["log"].append("tidy")

    @cleanup(priority=5)
    async def sooner(self, state):
        raise RuntimeError("disk gone")

    @teardown
    async def close(self):
        self.closed = True


class Derived(Base):
    async def plain(self, state):  # an override of a hook stays one
        return True

    @stop(priority=-5)
    def later(self, state):
        return False


def names(hooks):
    return [hook.__name__ for hook in hooks]


def test_hooks_run_by_priority_then_by_name():
    built_in = ["response_truncated", "has_final_env_response"]
    assert names(stop.collect(Base(dataset=ROWS))) == [
        *built_in,
        "first",
        "plain",
        "max_turns_reached",
    ]
    assert names(stop.collect(Derived(dataset=ROWS))) == [
        *built_in,
        "first",
        "plain",
        "later",
        "max_turns_reached",
    ]
    assert names(cleanup.collect(Derived(dataset=ROWS))) == ["sooner", "tidy"]


def test_an_override_is_what_runs():
    hooks = stop.collect(Derived(dataset=ROWS))
    plain = next(hook for hook in hooks if hook.__name__ == "plain")
    assert asyncio.run(plain({})) is True


def test_a_failing_cleanup_is_logged_and_the_others_run(caplog):
    state = {"log": []}
    asyncio.run(Base(dataset=ROWS).run_cleanup(state))
    assert state["log"] == ["tidy"]
    (record,) = caplog.records
    assert "sooner failed" in record.getMessage()
    assert str(record.exc_info[1]) == "disk gone"


def test_teardown_runs_when_asked():
    env = Base(dataset=ROWS)
    asyncio.run(env.run_teardown())
    assert env.closed
