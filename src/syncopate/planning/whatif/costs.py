"""Costs: what an epoch costs on the machines of a setting."""

from __future__ import annotations

from syncopate.artifacts.results.whatif import Prices, Setting
from syncopate.errors import InvalidValueError
from syncopate.units import format_link, parse_link, sold_as

_NEAR = 0.01


def epoch_cost(prices: Prices, setting: Setting, throughput: float) -> float:
    """Return what an epoch costs: its hours, times what an hour of all nodes costs.

    Args:
        prices: of GPUs, nodes and links.
        setting: how many of them there are.
        throughput: samples per second; 0: an iteration takes no time.

    Raises:
        InvalidValueError: the batch is not known, so that throughput counts no samples; or prices
            name links, and not this one.
    """
    if setting.batch is None:
        rule = "known where an epoch is to be priced: the metadata of the profile name it"
        raise InvalidValueError("batch", None, rule)
    gpu_hour = prices.gpu_hour
    for factor, price in prices.gpu_speed_hour.items():
        if _is_near(_number(factor), setting.gpu_speed):
            gpu_hour = price
    node_hour = prices.node_hour + link_hour(prices, setting.bandwidth_bytes_per_s)
    hour = setting.nodes * (node_hour + setting.gpus_per_node * gpu_hour)
    return prices.epoch_samples / throughput / 3600 * hour if throughput > 0 else 0.0


def link_hour(prices: Prices, bytes_per_s: float) -> float:
    """Return what an hour of one node's link costs.

    Raises:
        InvalidValueError: prices name links, and not this one.
    """
    if not prices.link_hour:
        return 0.0
    for name, price in prices.link_hour.items():
        if _is_near(parse_link(name), bytes_per_s):
            return price
    asked = sold_as(bytes_per_s) or format_link(bytes_per_s)
    rule = f"one of those with a price: {', '.join(prices.link_hour)}"
    raise InvalidValueError("link_hour of the prices", asked, rule)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        rule = "a factor on the speed of the profiled GPU, such as 2"
        raise InvalidValueError("gpu_speed_hour of the prices", text, rule) from None


def _is_near(one: float, other: float) -> bool:
    return abs(one / other - 1) < _NEAR
