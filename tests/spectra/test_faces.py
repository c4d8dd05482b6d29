"""Results show themselves in a line, a table and a picture, and pickle without their loss."""

from __future__ import annotations

import json
import pickle
import sys

import pytest
import torch

from infhess import Hessian, Isotropic, RateFree, condition, density, diagonal, largest, spectrum, trace
from infhess.optim.reports import Report
from small_data import loader, problem
from util import close, randn


def measured(k=5):
    loss, w, data, _ = problem(500)
    return spectrum(Hessian(lambda b: loss(b), [w], loader(data, 32)), k), data


def estimates():
    loss, w, data, _ = problem(500)
    return [call(Hessian(lambda b: loss(b), [w], loader(data, 32))) for call in (largest, trace)]


def report():
    return Report(torch.tensor([3.0, 1.0]), torch.tensor([0.1, 0.2]), 0.5, 16, 512, 0.1, ("a < b",))


def rate_report():
    w = torch.nn.Parameter(torch.ones(3))
    opt, x = RateFree([w]), randn(32, 3, dtype=torch.float32)
    for _ in range(3):
        opt.zero_grad()
        loss = ((x @ w - 1) ** 2).mean()
        loss.backward()
        found = opt.observe(lambda b: ((b @ w - 1) ** 2).mean(), x)
        opt.step()
        if found is not None:
            return found
    raise AssertionError("no report")


def posterior():
    return condition(Isotropic(1.0, 1.0, 0.1), randn(6, 3), randn(6, 3, seed=1))


def shown():
    found, data = measured()
    return {
        "spectrum": found,
        "along": found.along(loader(data, 32)),
        "largest": estimates()[0],
        "trace": estimates()[1],
        "report": report(),
        "rate": rate_report(),
        "posterior": posterior(),
    }


@pytest.mark.parametrize("name", shown())
def test_each_is_a_short_line_and_pickles(name):
    result = shown()[name]
    assert len(repr(result).splitlines()) <= 2
    assert len(repr(result)) < 300
    assert repr(pickle.loads(pickle.dumps(result))) == repr(result)


@pytest.mark.parametrize("name", ["spectrum", "along", "largest", "trace", "report", "rate", "posterior"])
def test_tables_and_numbers(name):
    result = shown()[name]
    text = result._repr_html_()
    assert text.startswith("<table>")
    assert "a < b" not in text
    json.dumps(result.as_dict())


@pytest.mark.parametrize("name", ["spectrum", "along", "largest", "trace", "report", "rate", "posterior"])
def test_pictures(name):
    result = shown()[name]
    ax = result.plot()
    assert result.plot(ax=ax) is ax
    assert ax.get_legend() is not None


def test_the_picture_shows_the_intervals():
    found, _ = measured()
    ax, (low, high) = found.plot(), found.interval()
    container = ax.containers[0]
    segments = torch.tensor([segment[:, 1].tolist() for segment in container.lines[2][0].get_segments()])
    close(segments[:, 0], low, 1e-6)
    close(segments[:, 1], high, 1e-6)
    close(torch.tensor(list(container.lines[0].get_ydata())), found.values, 1e-6)


def test_what_is_measured_along_vectors_is_not_called_an_eigenvalue():
    found, data = measured(3)
    along = found.along(loader(data, 32))
    what = "curvature along the vector"
    assert list(along.to_pandas().columns) == [what, "value", "std", "low", "high"]
    assert along.plot().get_xlabel() == f"{what} number"
    assert what in along._repr_html_()
    assert "eigenvalue" not in along._repr_html_()


def test_numbers_are_those_of_the_result():
    found, _ = measured(3)
    numbers = found.as_dict()
    assert numbers["values"] == found.values.tolist()
    assert numbers["low"] == found.interval()[0].tolist()
    assert numbers["memory"] == found.memory > 0


def test_a_pickled_spectrum_has_its_intervals_and_wants_a_source_for_fresh_data():
    found, data = measured(3)
    again = pickle.loads(pickle.dumps(found))
    close(again.interval(0.9)[1], found.interval(0.9)[1], 0.0)
    assert found._source is not None
    with pytest.raises(TypeError, match="pickling has left the loss behind"):
        again.along([data])
    loss, w, _, _ = problem(500)
    assert again.along(Hessian(loss, [w], [data])).values.shape == (3,)


def test_pickled_estimates_have_their_bounds():
    for estimate in estimates():
        again = pickle.loads(pickle.dumps(estimate))
        assert again.interval(0.9) == estimate.interval(0.9)
        assert again.upper(0.99) == estimate.upper(0.99)


def test_data_frames():
    found, _ = measured(3)
    table = found.to_pandas()
    assert list(table.columns) == ["eigenvalue", "value", "std", "low", "high"]
    assert table["value"].tolist() == found.values.tolist()
    assert report().to_pandas()["std"].tolist() == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(("call", "package"), [("plot", "matplotlib"), ("to_pandas", "pandas")])
def test_what_is_missing_is_named(call, package, monkeypatch):
    found, _ = measured(2)
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"needs {package}; install it with: pip install"):
        getattr(found, call)()


def test_one_estimate_is_one_row():
    for found in estimates():
        (row,) = found.to_pandas().to_dict("records")
        assert (row["low"], row["high"]) == found.interval()
        assert (row["value"], row["std"]) == (found.value, found.std)


def layers():
    w = {name: torch.full((3,), 0.5, requires_grad=True) for name in ("first.weight", "first.bias", "second.weight")}
    loss = lambda x: ((x * w["first.weight"] + w["first.bias"]).sin() @ w["second.weight"] ** 2).square().mean()  # noqa: E731
    return Hessian(loss, w, randn(64, 3, dtype=torch.float32).split(8))


@pytest.mark.parametrize(
    ("call", "rows"),
    [(trace, ["first", "second"]), (lambda s, by: spectrum(s, 2, by=by), ["first"] * 2 + ["second"] * 2)],
)
def test_layers_are_a_dict_with_a_table_and_a_picture(call, rows):
    found = call(layers(), by="layer")
    assert isinstance(found, dict)
    frame, ax = found.to_pandas(), found.plot()
    assert frame["layer"].tolist() == rows
    assert frame["value"].tolist() == [v for part in found.values() for v in part.to_pandas()["value"]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["first", "second"]
    assert list(ax.containers[0].lines[0].get_xdata()) == [1 + (name == "second") for name in rows]
    assert found._repr_html_().count("<tr>") == 1 + len(rows)
    assert json.loads(json.dumps(found.as_dict()))["second"] == found["second"].as_dict()
    again = pickle.loads(pickle.dumps(found))
    assert repr(again) == repr(found)
    assert repr(found).startswith("Layers(first: ")


def test_a_posterior_gives_the_eigenvalues_of_its_mean():
    found = posterior()
    values, _, std = found.eigh(4)
    frame, held = found.to_pandas(k=4), found.as_dict()
    close(torch.tensor(frame["value"]), values, 0.0)
    close(torch.tensor(frame["high"] - frame["low"]), 2 * 1.96 * std, 1e-9)
    assert (held["shape"], held["observations"], len(held["value"])) == ([6, 6], 3, 6)


def test_a_posterior_that_is_not_square_gives_singular_values():
    found = condition(Isotropic(0.0, 1.0, 0.1), randn(4, 3), randn(6, 3, seed=1))
    close(torch.tensor(found.to_pandas(k=2)["value"]), found.svd(2).values, 0.0)
    assert "singular value" in found._repr_html_()
    assert found.plot().get_xlabel() == "singular value number"


def distribution():
    loss, w, data, _ = problem(500)
    return density(Hessian(lambda b: loss(b), [w], loader(data, 32)))


def test_a_density_shows_itself_in_a_line_a_table_and_rows():
    found = distribution()
    assert repr(found).startswith("Density(from ")
    assert len(repr(found)) < 160
    assert "within ± " in found._repr_html_()
    held = json.loads(json.dumps(found.as_dict()))
    low, _ = found.interval(torch.tensor(held["x"], dtype=torch.float64))
    close(torch.tensor(held["low"]), low, atol=1e-9)
    assert held["negative"] == found.negative.as_dict()
    frame = found.to_pandas()
    assert list(frame.columns) == ["x", "density", "share", "low", "high"]
    assert bool((frame.low <= frame.share + 1e-9).all())
    assert pickle.loads(pickle.dumps(found)).as_dict() == found.as_dict()


def test_a_diagonal_shows_itself_as_values_do():
    loss, w, data, _ = problem(500)
    found = diagonal(Hessian(lambda b: loss(b), [w], loader(data, 32)))
    assert repr(found).startswith("Diagonal(")
    assert list(found.to_pandas().columns) == ["entry", "value", "std", "low", "high"]
    assert "entry" in found._repr_html_()
    assert len(found.as_dict()["values"]) == len(found.values)
