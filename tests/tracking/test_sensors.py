"""Sensors of a real process; what is not there is named, never zero."""

from __future__ import annotations

import os
import time

import pytest

from tracking.sensors import Sample, Sampler, Sensors, summarise


def test_a_busy_process_is_seen() -> None:
    sampler = Sampler(os.getpid(), 0.05, lambda _: None)
    sampler.start()
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        sum(range(10_000))
    sampler.stop()
    assert len(sampler.samples) >= 3
    last = sampler.samples[-1].values
    assert last["system/process_rss_megabytes"] > 10
    assert max(sample.values.get("system/process_cpu_percentage", 0) for sample in sampler.samples) > 20
    assert last["system/system_memory_usage_megabytes"] > 0


def test_a_missing_sensor_is_named_with_a_reason_and_gives_no_value() -> None:
    sensors = Sensors(os.getpid())
    sample = sensors.read()
    for name in sensors.missing:
        assert sensors.missing[name]
        assert not any(name in key for key in sample.values)


def test_a_process_that_has_ended_does_not_stop_the_sampler() -> None:
    sensors = Sensors(os.getpid())
    sensors._process = __import__("psutil").Process(os.getppid())
    assert sensors.read().values


def test_summaries_cover_the_window_alone_and_only_sensors_that_spoke() -> None:
    def sample(second: float, watts_so_far: float, temperature: float) -> Sample:
        values = {"system/cpu_utilization_percentage": 10 * second, "system/gpu_0_temperature_celsius": temperature}
        return Sample(second, values, {"gpu_0": watts_so_far})

    samples = [sample(0, 0, 90), sample(1, 100, 40), sample(2, 150, 42), sample(3, 200, 44), sample(9, 10_000, 99)]
    found = summarise(samples, 1, 3, 200)
    assert found["cpu/utilization_percent_mean"] == pytest.approx(20)
    assert found["gpu/temperature_celsius_max"] == 44
    assert found["gpu/temperature_celsius_mean"] == pytest.approx(42)
    assert found["power/watts_mean"] == pytest.approx(50)  # (200 − 100) J in 2 s
    assert found["energy/joules"] == pytest.approx(100)
    assert found["energy/joules_per_example"] == pytest.approx(0.5)
    assert "cpu/temperature_celsius_mean" not in found
    assert summarise([], 0, 1, 10) == {}
