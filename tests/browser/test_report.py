"""The page of runs: of a sweep, of many long runs, and one that follows runs at work."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

from browser import (WIDTHS, browser, can_fail, click, column, fits, is_drawn, meshwright, on_paper, open_page, points, quiet, resize, rest, said,
                     settled, shot, stands_alone, theme)
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

BINARY = sys.argv[1]
SEEDS, EPOCHS, BATCHES, LAYOUTS = 3, 4, (25, 50, 100), ("dp on 2", "dp on 4", "dp_tp on 2×2", "one device")
CURVES = [f"{kind}-{part}-{what}" for kind in ("batch", "layout") for what in ("accuracy", "loss") for part in ("test", "train")]
SETTINGS = [f"setting-{part}-{what}" for what in ("accuracy", "loss") for part in ("test", "train")]
CHARTS = [*CURVES, "steps", *SETTINGS, "time", "bytes", "strong", "weak", "collectives", "memory"]


def sweep():
    """A small study: its folder, and its page."""
    meshwright(BINARY, "new", "points")
    words = ["sweep", "points/points.mw", "--data", "points/data", "--dim", "batch=25,50,100", "--layout", "dp,dp_tp", "--mesh", "2,4,2x2"]
    meshwright(BINARY, *words, "--one-device", "--seeds", str(SEEDS), "--epochs", str(EPOCHS), "--run", "study", "--report", "study.html")
    return Path("study"), Path("study.html")


def rows(study):
    return [json.loads(line) for line in (study / "table.jsonl").read_text().splitlines()]


def events(run, kind):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def series(driver, chart):
    """Name, kind and data of each series, as they were given."""
    return driver.execute_script(
        "return page.charts.get(arguments[0]).current.series.map(s => [s.name, s.type, Boolean(s.silent), s.data])", chart
    )


def lines(driver, chart):
    return {name: data for name, kind, silent, data in series(driver, chart) if kind == "line" and not silent}


def tip(driver, chart):
    """What the tip of a chart says, where one is shown."""
    return driver.execute_script(
        "return [...document.querySelectorAll(`#chart-${arguments[0]} .tip`)].map(t => t.innerText).join('\\n')", chart
    )


def choose(driver, chart, text):
    """Takes a choice of the section of a chart."""
    driver.execute_script(
        """const section = document.getElementById(`chart-${arguments[0]}`).closest("section");
        const select = [...section.querySelectorAll("select")].find(s => [...s.options].some(o => o.text === arguments[1]));
        select.value = [...select.options].find(o => o.text === arguments[1]).value;
        select.dispatchEvent(new Event("change"));""",
        chart,
        text,
    )
    settled(driver)


def legend(driver, chart):
    return driver.find_elements(By.CSS_SELECTOR, f"#chart-{chart} .legend button[data-name]")


def every_chart_is_drawn(driver, study):
    assert driver.execute_script("return [...page.charts.keys()]") == CHARTS
    assert driver.execute_script("return [...page.charts.values()].every(c => !c.figure.hidden)")
    for chart in CHARTS:
        assert is_drawn(driver, chart), chart
    for chart in ("batch-test-loss", "bytes", "collectives"):
        can_fail(driver, chart)
    for chart in CURVES[:4]:
        assert {name: len(data) for name, data in lines(driver, chart).items()} == {f"batch {b}": EPOCHS for b in BATCHES}, chart
    for chart in CURVES[4:]:
        assert {name: len(data) for name, data in lines(driver, chart).items()} == dict.fromkeys(LAYOUTS, EPOCHS), chart
    # What was given is what was taken: with a band for each line, of all seeds.
    assert [n for _, n in points(driver, "batch-test-loss")] == [EPOCHS] * 2 * len(BATCHES)
    steps = points(driver, "steps")
    finished = [row for row in rows(study) if row["state"] == "finished"]
    assert sorted(n for _, n in steps) == sorted(row["steps"] for row in finished) and len(finished) == 36


def numbers_are_those_of_the_runs(driver, study):
    """A line is the mean over seeds of what the runs' own logs say, and its band the least and the greatest."""
    choose(driver, "batch-test-loss", "dp on 2")
    for set_, metric, field in (("test", "loss", "eval_loss"), ("test", "accuracy", "eval_accuracy"), ("train", "loss", "train_loss")):
        logs = [events(study / f"dp-2-batch=50-seed={seed}", "epoch") for seed in range(SEEDS)]
        of = [[log[epoch][field] for log in logs] for epoch in range(EPOCHS)]
        drawn = lines(driver, f"batch-{set_}-{metric}")["batch 50"]
        assert [x for x, _ in drawn] == list(range(1, EPOCHS + 1))
        assert all(abs(y - sum(v) / SEEDS) < 1e-5 for (_, y), v in zip(drawn, of)), (drawn, of)
        bands = [data for name, kind, _, data in series(driver, f"batch-{set_}-{metric}") if kind == "custom" and name == "batch 50"]
        assert all(abs(low - min(v)) < 1e-5 and abs(high - max(v)) < 1e-5 for (_, low, high), v in zip(bands[0], of)), bands
    choose(driver, "batch-test-loss", "all layouts")
    log = [event["loss"] for event in events(study / "one-device-batch=25-seed=1", "step")]
    run = driver.execute_script("return page.charts.get('steps').current.series.find(s => s.run === 'one-device-batch=25-seed=1').data")
    assert all(abs(y - loss) < 1e-4 for (_, y), loss in zip(run, log)) and len(run) == len(log)


def losses_are_smoothed(driver, study):
    run = "one-device-batch=25-seed=1"
    drawn = lambda: driver.execute_script("return page.charts.get('steps').current.series.find(s => s.run === arguments[0]).data", run)
    plain = drawn()
    choose(driver, "steps", "0.9")
    total = weights = 0
    for (x, smooth), (step, loss) in zip(drawn(), plain):
        total, weights = 0.9 * total + 0.1 * loss, 0.9 * weights + 0.1
        assert x == step and abs(smooth - total / weights) < 1e-9, (x, smooth)
    assert "weight 0.9" in driver.find_element(By.ID, "chart-steps").text
    choose(driver, "steps", "none")
    assert drawn() == plain


def results_stand_over_what_runs_are_made_with(driver, study):
    last = lambda layout, batch: [events(study / f"{layout}-batch={batch}-seed={seed}", "epoch")[-1]["eval_loss"] for seed in range(SEEDS)]
    found = lines(driver, "setting-test-loss")
    assert sorted(found) == sorted(LAYOUTS), found
    for batch, (x, y) in zip(BATCHES, found["dp on 4"]):
        assert x == batch and abs(y - sum(last("dp-4", batch)) / SEEDS) < 1e-5, (batch, x, y)


def what_a_search_chose_is_named(_):
    """Drawn values stand as points; the page begins with what halving chose."""
    text = Path("points/points.mw").read_text()
    Path("rated.mw").write_text("const lr = 0.01\n" + text.replace("adam(lr = 1e-2)", "adam(lr = lr)"))
    words = ["sweep", "rated.mw", "--data", "points/data", "--set", "lr=log:1e-3..1", "--search", "halving", "--trials", "9"]
    meshwright(BINARY, *words, "--epochs", "9", "--objective", "accuracy", "--run", "halving", "--report", "halving.html")
    chosen = [row["run"] for row in rows(Path("halving")) if row["epochs"] == 9]
    assert len(chosen) == 1
    with browser() as driver:
        open_page(driver, Path("halving.html"))
        about = driver.find_element(By.XPATH, "//section[h2='Runs']//p[@class='about']").text
        assert f"Chosen: {chosen[0]}, the best of 9 trials by accuracy: " in about, about
        (name, points), = lines(driver, "setting-test-loss").items()
        assert len(points) == 9 and [x for x, _ in points] == sorted(x for x, _ in points), (name, points)
        assert is_drawn(driver, "setting-test-loss")
        shot(driver, "report-halving")
        quiet(driver)


def costs_are_those_of_the_plans(driver, study):
    choose(driver, "collectives", "batch 50")
    plan = json.loads((study / "dp_tp-2x2-batch=50-seed=0" / "costs.json").read_text())
    names = driver.execute_script("return page.charts.get('collectives').current.yAxis.data")
    assert names == ["dp on 2", "dp on 4", "dp_tp on 2×2"], names
    drawn = {name: data[2] for name, _, _, data in series(driver, "collectives")}
    told = {f"{c['op'].replace('_', '-')} over {' and '.join(c['axes'])}": c["bytes"] for c in plan["collectives"]}
    assert {name: n for name, n in drawn.items() if n} == told, (drawn, told)
    memory = {name: data[2] for name, _, _, data in series(driver, "memory")}
    assert sum(memory.values()) == plan["peak_bytes"] and memory["optimizer state"] == plan["optimizer_state_bytes"]


def speeds_are_those_of_the_table(driver, study):
    table = {row["run"]: row for row in rows(study)}
    mean = lambda run: sum(table[f"{run}-seed={seed}"]["examples_per_second"] for seed in range(SEEDS)) / SEEDS
    strong = lines(driver, "strong")["dp, batch 100"]
    expected = [[1, mean("one-device-batch=100")], [2, mean("dp-2-batch=100")], [4, mean("dp-4-batch=100")]]
    assert [x for x, _ in strong] == [1, 2, 4]
    assert all(abs(y / e - 1) < 1e-4 for (_, y), (_, e) in zip(strong, expected)), (strong, expected)
    # The ideal begins where the line does, and grows with the devices.
    ideal = [data for name, _, silent, data in series(driver, "strong") if silent and name == "dp, batch 100" and len(data) == 2]
    assert ideal[0][0] == strong[0] and ideal[0][1][0] == 4 and abs(ideal[0][1][1] / strong[0][1] - 4) < 1e-6
    weak = lines(driver, "weak")["dp, batch 25 a device"]
    assert abs(weak[0][1] / mean("one-device-batch=25") - 1) < 1e-4 and abs(weak[2][1] / mean("dp-4-batch=100") - 1) < 1e-4
    epoch = lines(driver, "time")["one device"]
    median = sum(table[f"one-device-batch=25-seed={s}"]["step_ms_median"] for s in range(SEEDS)) / SEEDS
    assert abs(epoch[0][1] / (median / 1e3 * (600 // 25)) - 1) < 1e-4, epoch
    by_bytes = {name: data for name, kind, _, data in series(driver, "bytes") if kind == "scatter"}
    assert {name: len(data) for name, data in by_bytes.items()} == dict.fromkeys(LAYOUTS, len(BATCHES)), by_bytes
    same = [table[f"dp_tp-2x2-batch=25-seed={s}"] for s in range(SEEDS)]
    x, y = by_bytes["dp_tp on 2×2"][0]
    assert x == same[0]["collective_bytes"] and abs(y / (sum(r["step_ms_median"] for r in same) / SEEDS / 1e3) - 1) < 1e-4, (x, y)


def legends_hide_and_show(driver, _):
    chart = "batch-test-loss"
    keys = legend(driver, chart)
    assert [k.text for k in keys] == [f"batch {b}" for b in BATCHES]
    shown = lambda: sorted(set(name for name, _ in points(driver, chart)))
    before = len(points(driver, chart))
    click(driver, keys[0])
    assert keys[0].get_attribute("aria-pressed") == "false" and shown() == ["batch 100", "batch 50"], shown()
    # It stays hidden when the chart is drawn again.
    theme(driver)
    theme(driver)
    assert shown() == ["batch 100", "batch 50"]
    legend(driver, chart)[0].send_keys(Keys.ENTER)
    assert len(points(driver, chart)) == before
    ActionChains(driver).key_down(Keys.SHIFT).click(legend(driver, chart)[1]).key_up(Keys.SHIFT).perform()
    assert shown() == ["batch 50"]
    # Another one alone, and all of them again.
    ActionChains(driver).key_down(Keys.SHIFT).click(legend(driver, chart)[0]).key_up(Keys.SHIFT).perform()
    assert shown() == ["batch 25"], shown()
    for key in (1, 2):
        click(driver, legend(driver, chart)[key])
    assert len(points(driver, chart)) == before
    # Where there are many, all at once: each run is a line, by its own color.
    choose(driver, "steps", "run")
    every = lambda text: click(driver, driver.find_element(By.XPATH, f"//figure[@id='chart-steps']//button[.='{text}']"))
    many = len(points(driver, "steps"))
    every("None")
    assert points(driver, "steps") == []
    every("All")
    assert len(points(driver, "steps")) == many == 36 and is_drawn(driver, "steps")
    choose(driver, "steps", "each combination")


def rows_are_sorted(driver, study):
    # The page has six digits.
    short = lambda v: None if v is None else float(f"{v:.5e}")
    table = {row["run"]: short(row["test_loss"]) for row in rows(study)}
    sort = lambda title: click(driver, next(b for b in driver.find_elements(By.CSS_SELECTOR, "#table-runs th button") if b.text == title))
    names = column(driver, "runs", "run")
    assert names == [row["run"] for row in rows(study)]
    sort("test loss")
    up = [table[name] for name in column(driver, "runs", "run")]
    known = [v for v in up if v is not None]
    assert known == sorted(known) and len(known) == 36 and up[36:] == [None] * (len(up) - 36), up
    assert driver.find_element(By.CSS_SELECTOR, "#table-runs th[aria-sort=ascending]").text.startswith("test loss")
    sort("test loss")
    down = [table[name] for name in column(driver, "runs", "run")]
    assert down[:36] == known[::-1] and down[36:] == up[36:]
    # The order of the sweep again, for those who come after.
    driver.refresh()
    settled(driver)


def a_filter_holds_for_rows_and_charts(driver, study):
    colors = lambda chart: driver.execute_script(
        "return Object.fromEntries(page.charts.get(arguments[0]).current.series.map(s => [s.name, s.itemStyle.color]))", chart)
    before = colors("strong")
    field = driver.find_element(By.CSS_SELECTOR, ".filter input")
    field.send_keys("batch=100")
    rest(driver, 0.5)
    settled(driver)
    some = colors("strong")
    assert 0 < len(some) < len(before) and all(before[name] == color for name, color in some.items()), (before, some)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("finished batch<=50 devices=4")
    names = column(driver, "runs", "run")
    chosen = [row["run"] for row in rows(study) if row["state"] == "finished" and row["batch"] <= 50 and row["devices"] == 4]
    assert sorted(names) == sorted(chosen) and len(chosen) == 12
    rest(driver, 0.5)
    settled(driver)
    assert sorted(lines(driver, "batch-test-loss")) == ["batch 25", "batch 50"]
    assert sorted(lines(driver, "layout-test-loss")) == ["dp on 4", "dp_tp on 2×2"]
    # Charts that are left with nothing are not shown.
    assert driver.execute_script("return page.charts.get('strong').figure.hidden")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("no such run")
    rest(driver, 0.5)
    settled(driver)
    assert column(driver, "runs", "run") == [] and driver.execute_script("return [...page.charts.values()].every(c => c.figure.hidden)")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE)
    rest(driver, 0.5)
    settled(driver)
    every_chart_is_drawn(driver, study)


def hover_says_what_is_there(driver, _):
    place = driver.find_element(By.CSS_SELECTOR, "#chart-batch-test-loss .chart")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
    ActionChains(driver).move_to_element_with_offset(place, 0, 0).perform()
    rest(driver, 0.5)
    hover = tip(driver, "batch-test-loss")
    epoch = int(re.match(r"epoch (\d+)", hover)[1])
    for batch in BATCHES:
        value = lines(driver, "batch-test-loss")[f"batch {batch}"][epoch - 1][1]
        told = re.search(rf"batch {batch}\s+([\d.e-]+) \(", hover)
        assert told and abs(float(told[1]) / value - 1) < 1e-4, (hover, value)
    # The same by keyboard, said to those who do not see it.
    place.send_keys(Keys.ARROW_RIGHT)
    rest(driver, 0.5)
    status = driver.find_element(By.CSS_SELECTOR, "#chart-batch-test-loss [role=status]").get_attribute("textContent")
    assert "epoch 1" in tip(driver, "batch-test-loss") and "epoch 1" in status and "batch 100" in status, status
    place.send_keys(Keys.ARROW_RIGHT)
    rest(driver, 0.5)
    assert "epoch 2" in tip(driver, "batch-test-loss")
    place.send_keys(Keys.ESCAPE)
    # Where a point is told alone, up and down reach the other layouts.
    first = said(driver, "bytes", Keys.ARROW_RIGHT)
    assert "dp on 2" in first and "a step" in first, first
    told = {said(driver, "bytes", Keys.ARROW_DOWN).split(",")[1].strip() for _ in LAYOUTS[1:]}
    assert told == set(LAYOUTS[1:]), told
    assert "dp_tp on 2×2" in said(driver, "bytes", Keys.ARROW_UP)
    # Of all runs, also those that have no point at that very step.
    middle = driver.find_element(By.CSS_SELECTOR, "#chart-steps .chart")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", middle)
    ActionChains(driver).move_to_element_with_offset(middle, -middle.rect["width"] // 4, 0).perform()
    rest(driver, 0.5)
    every = tip(driver, "steps")
    assert len(re.findall(r"seed=\d", every)) == 14 and "and 22 more" in every, every


def heads_are_those_of_the_points(driver, _):
    """The time of an epoch is told under its own batch size, though that may be the place of another one."""
    meshwright(BINARY, "sweep", "points/points.mw", "--data", "points/data", "--dim", "batch=1,2,3", "--epochs", "1", "--run", "small",
               "--report", "small.html")
    with browser() as other:
        open_page(other, "small.html")
        heads = [said(other, "time", Keys.ARROW_RIGHT).split(",")[0] for _ in range(3)]
        assert heads == ["batch 1", "batch 2", "batch 3"], heads
        quiet(other)


def charts_zoom(driver, _):
    zoom = lambda: driver.execute_script("const z = page.charts.get('steps').instance.getOption().dataZoom[0]; return [z.start, z.end]")
    place = driver.find_element(By.CSS_SELECTOR, "#chart-steps .chart")
    assert zoom() == [0, 100]
    place.send_keys("+")
    assert zoom() == [25, 75]
    theme(driver)
    theme(driver)
    assert zoom() == [25, 75]
    place.send_keys("-")
    assert zoom() == [0, 100]
    place.send_keys("+")
    click(driver, driver.find_element(By.CSS_SELECTOR, "#chart-steps button[aria-label$=whole]"))
    assert zoom() == [0, 100]
    # A wheel turned with Ctrl, which scrolls the page without.
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
    at = ScrollOrigin.from_element(place)
    ActionChains(driver).key_down(Keys.CONTROL).scroll_from_origin(at, 0, -240).key_up(Keys.CONTROL).perform()
    rest(driver)
    start, end = zoom()
    assert 0 < start < end < 100, (start, end)
    click(driver, driver.find_element(By.CSS_SELECTOR, "#chart-steps button[aria-label$=whole]"))
    log = driver.find_element(By.CSS_SELECTOR, "#chart-steps button[aria-label$='logarithmic axis']")
    kind = lambda: driver.execute_script("return page.charts.get('steps').instance.getOption().yAxis[0].type")
    click(driver, log)
    assert (kind(), log.get_attribute("aria-pressed")) == ("log", "true")
    assert is_drawn(driver, "steps")
    click(driver, log)
    assert kind() == "value"


def charts_are_downloaded(driver, folder):
    driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    for chart in CHARTS:
        stands_alone(driver, chart)
        for kind in ("SVG", "PNG"):
            button = driver.find_element(By.CSS_SELECTOR, f"#chart-{chart} button[aria-label$='as {kind}']")
            driver.execute_script("arguments[0].click()", button)
            file = folder / f"{chart}.{kind.lower()}"
            for _ in range(100):
                if file.is_file() and file.stat().st_size > 0:
                    break
                time.sleep(0.1)
            data = file.read_bytes()
            same = driver.execute_script(f"return page.{kind.lower()}(page.charts.get(arguments[0]))", chart)
            # Identifiers within a drawing are counted on.
            plain = lambda text: re.sub(r"zr\d+-\w+(-\d+)?", "", text)
            if kind == "PNG":
                assert data == base64.b64decode(same.split(",")[1]), chart
            else:
                assert plain(data.decode()) == plain(same), chart
    if os.environ.get("SHOTS"):
        for file in folder.iterdir():
            Path(os.environ["SHOTS"], f"file-{file.name}").write_bytes(file.read_bytes())
    # What is hidden is not in the file, also not in its key; what was chosen and filtered stands in it.
    choose(driver, "batch-test-loss", "dp on 2")
    click(driver, legend(driver, "batch-test-loss")[0])
    stands_alone(driver, "batch-test-loss")
    drawn = driver.execute_script("return page.svg(page.charts.get('batch-test-loss'))")
    assert "batch 25" not in drawn and "batch 50" in drawn and "Layout: dp on 2" in drawn
    click(driver, legend(driver, "batch-test-loss")[0])
    choose(driver, "batch-test-loss", "all layouts")
    # A narrow window makes no narrow file, and dark paper is dark.
    resize(driver, 390)
    theme(driver)
    rest(driver)
    stands_alone(driver, "layout-test-loss")
    theme(driver)
    resize(driver, 1280)


def themes_change(driver, _):
    light = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark = theme(driver)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 24, 31)")
    picture = "return page.png(page.charts.get('batch-test-loss'))"
    in_dark = driver.execute_script(picture)
    theme(driver)
    assert base64.b64decode(in_dark.split(",")[1]) != base64.b64decode(driver.execute_script(picture).split(",")[1])


def paper_holds_all_of_it(driver, _):
    on_paper(driver, 1032)


def looks(driver, _):
    for width in WIDTHS:
        resize(driver, width)
        rest(driver, 0.5)
        fits(driver)
        for chart in CHARTS:
            assert is_drawn(driver, chart), (width, chart)
        shot(driver, f"report-light-{width}")
        theme(driver)
        shot(driver, f"report-dark-{width}")
        theme(driver)
    resize(driver, 1280)


def chosen(driver, chart):
    """What is chosen in the section of a chart."""
    return driver.execute_script(
        """return [...document.getElementById(`chart-${arguments[0]}`).closest("section").querySelectorAll("select")]
        .map(s => s.selectedOptions[0].text);""",
        chart,
    )


def until(driver, holds):
    """Waits until something holds of a page that follows runs."""
    for _ in range(200):
        if holds():
            break
        time.sleep(0.1)
    settled(driver)
    assert holds()


def names_are_text(driver, folder):
    """Whatever folders are called, the page shows it, and does nothing else with it."""
    hostile = ["<img src=x onerror=window.harmed=1>", "a 'quoted' \"name\"", "constructor", "__proto__", "</script><b>bold"]
    copies = [folder / name.replace("/", "\u2215") for name in hostile]
    for copy in copies:
        shutil.copytree(folder / "later", copy)
    until(driver, lambda: all(copy.name in column(driver, "runs", "run") for copy in copies))
    choose(driver, "steps", "run")
    shown = [key.get_attribute("data-name") for key in legend(driver, "steps")]
    assert all(copy.name in shown for copy in copies), shown
    told = said(driver, "steps", "-", Keys.ARROW_RIGHT)
    assert "step 1" in told, told
    assert driver.execute_script("return [window.harmed, document.querySelectorAll('main img, main b b').length]") == [None, 0]
    # What every object has is as it was.
    untouched = "return [Object.keys(Object), Object.keys(Object.prototype), Object.getOwnPropertyNames(Object.prototype).length]"
    before = driver.execute_script(untouched)
    file = ElementTree.fromstring(driver.execute_script("return page.svg(page.charts.get('steps'))"))
    words = ["".join(e.itertext()).strip("\u2060") for e in file.iter("{http://www.w3.org/2000/svg}text")]
    for copy in copies:
        assert copy.name in words, (copy.name, words)
        shutil.rmtree(copy)
    assert driver.execute_script(untouched) == before and before[:2] == [[], []], before
    until(driver, lambda: not any(copy.name in column(driver, "runs", "run") for copy in copies))
    choose(driver, "steps", "each combination")
    quiet(driver)


def what_fails_is_drawn_later(driver):
    """An update that the page fails at is no lost connection, and is not lost."""
    driver.execute_script("const made = page.charts.get('steps'); made.kept = made.draw; made.draw = () => { throw new TypeError('broken on purpose'); }")
    before = len(points(driver, "steps"))
    shutil.copytree("later", "again")
    errors = []
    until(driver, lambda: errors.extend(e for e in driver.get_log("browser") if "broken on purpose" in e["message"]) or errors)
    assert driver.find_element(By.CSS_SELECTOR, ".live").text == "live, none is running"
    driver.execute_script("const made = page.charts.get('steps'); made.draw = made.kept")
    until(driver, lambda: len(points(driver, "steps")) == before + 1)
    driver.get_log("browser")


def unreadable_runs_are_told(driver):
    Path("broken").mkdir()
    for name in ("metrics.jsonl", "costs.json"):
        shutil.copy(f"later/{name}", "broken")
    Path("broken/run.toml").write_text("model = ")
    text = lambda: driver.execute_script("const p = document.querySelector('.problems'); return p.hidden ? '' : p.textContent")
    until(driver, lambda: "broken/run.toml" in text())
    assert "cannot be read" in text() and "E0511" in text()
    shutil.rmtree("broken")
    until(driver, lambda: "broken/run.toml" not in text())
    quiet(driver)


def running_runs_are_named(driver):
    sign = lambda: driver.find_element(By.CSS_SELECTOR, ".live").text
    train = [BINARY, "train", "points/points.mw", "--data", "points/data", "--steps", "100000000", "--run", "going"]
    training = subprocess.Popen(train, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(driver, lambda: sign() == "live: going")
    finally:
        training.kill()
        training.wait()
    until(driver, lambda: sign() == "live, none is running")
    shutil.rmtree("going")
    until(driver, lambda: "going" not in column(driver, "runs", "run"))


def live(study):
    """A page that follows a run: what is new is drawn, and what was hidden and zoomed stays."""
    command = [BINARY, "report", ".", "--live"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=study.parent)
    try:
        address = serving.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address), address
        ask = lambda path, **headers: urllib.request.urlopen(urllib.request.Request(address + path, headers=headers))
        for path, headers, code in (("", {"Host": "example.com"}, 403), ("data.json", {"Host": "evil.test:80"}, 403), ("study/", {}, 404)):
            try:
                ask(path, **headers)
                raise AssertionError((path, headers))
            except urllib.error.HTTPError as error:
                assert error.code == code, (path, error.code)
        with browser() as driver:
            driver.get(address)
            settled(driver)
            assert driver.find_element(By.CSS_SELECTOR, ".live").text == "live, none is running"
            hidden = legend(driver, "batch-test-loss")[0]
            name = hidden.get_attribute("data-name")
            click(driver, hidden)
            driver.find_element(By.CSS_SELECTOR, "#chart-steps .chart").send_keys("+")
            choose(driver, "layout-test-loss", "all batch sizes")
            before = len(column(driver, "runs", "run"))
            meshwright(BINARY, "train", "points/points.mw", "--data", "points/data", "--dim", "batch=20", "--epochs", "2", "--run", "later")
            for _ in range(200):
                if "batch 20" in lines(driver, "batch-test-loss"):
                    break
                time.sleep(0.1)
            settled(driver)
            assert len(lines(driver, "batch-test-loss")["batch 20"]) == 2
            assert len(column(driver, "runs", "run")) == before + 1
            assert name not in [n for n, _ in points(driver, "batch-test-loss")]
            zoom = driver.execute_script("const z = page.charts.get('steps').instance.getOption().dataZoom[0]; return [z.start, z.end]")
            assert zoom == [25, 75], zoom
            assert chosen(driver, "layout-test-loss") == ["all batch sizes"]
            quiet(driver)
            names_are_text(driver, study.parent)
            what_fails_is_drawn_later(driver)
            unreadable_runs_are_told(driver)
            running_runs_are_named(driver)
            serving.send_signal(2)
            assert serving.wait(20) == 130
            for _ in range(100):
                if driver.find_element(By.CSS_SELECTOR, ".live").text == "not connected":
                    break
                time.sleep(0.1)
            assert driver.find_element(By.CSS_SELECTOR, ".live.lost").text == "not connected"
    finally:
        serving.kill()
        serving.wait()


def settings_that_differ(_):
    """Lines are told apart by what runs were made with, whoever said so; seeds that diverged are missing in words too."""
    folder = Path("apart")
    folder.mkdir()
    text = Path("points/points.mw").read_text().replace("lr = 1e-2", "lr = lr")
    model = folder / "points.mw"
    train = lambda name, *more: meshwright(
        BINARY, "train", str(model), "--data", "points/data", "--epochs", "4", "--run", str(folder / name), *more)
    model.write_text(text.replace("model points", "const lr = 0.01\n\nmodel points"))
    # A size that is asked for and is the model's own makes no other line.
    for seed in range(3):
        train(f"slow-{seed}", "--seed", str(seed), *(["--dim", "hidden=32"] if seed == 1 else []))
    # Somebody edits the model between two runs.
    model.write_text(text.replace("model points", "const lr = 0.02\n\nmodel points"))
    train("quick", "--layout", "batch -> ctx", "--mesh", "ctx=2,x=1")
    # One of three seeds ends in the middle.
    log = folder / "slow-2" / "metrics.jsonl"
    lines_ = log.read_text().splitlines()
    ends = [n for n, line in enumerate(lines_) if json.loads(line)["event"] == "epoch"]
    log.write_text("\n".join(lines_[:ends[1] + 1]) + "\n")
    meshwright(BINARY, "report", str(folder), "--output", "apart.html")
    with browser() as driver:
        open_page(driver, "apart.html")
        names = sorted(lines(driver, "layout-test-loss"))
        assert names == ["batch -> ctx on 2×1, lr 0.02", "one device, lr 0.01"], names
        chart = "layout-test-loss"
        counts = [said(driver, chart, Keys.ARROW_RIGHT) for _ in range(4)]
        assert ["2 of 3 seeds" in told for told in counts] == [False, False, True, True], counts
        about = driver.find_element(By.CSS_SELECTOR, f"#chart-{chart} figcaption small").text
        assert "one device, lr 0.01 (2 of 3 seeds)" in about, about
        stands_alone(driver, chart)
        # In rows, whose ends depend on the fonts that a machine has.
        file = ElementTree.fromstring(driver.execute_script("return page.svg(page.charts.get(arguments[0]))", chart))
        rows = ["".join(e.itertext()) for e in file.iter("{http://www.w3.org/2000/svg}text")]
        assert "2 of 3 seeds" in " ".join(rows), rows
        shot(driver, "apart-light-1280")
        quiet(driver)


def copies(study, count, steps):
    """Folders of runs of so many steps, made from one that ran: numbers of their own, under settings of their own."""
    source = study / "dp-2-batch=25-seed=0"
    log = events(source, "step")
    logs = []
    for kind in range(6):
        text = []
        for n in range(steps):
            event = dict(log[n % len(log)], step=n + 1, loss=log[n % len(log)]["loss"] * (1.0 + kind / 7.0) / (1.0 + n / 300.0))
            text.append(json.dumps(event))
            if (n + 1) % (steps // 20) == 0:
                epoch = (n + 1) // (steps // 20)
                told = {"eval_loss": event["loss"], "eval_accuracy": 1 - 0.5 / (epoch + kind)}
                text.append(json.dumps({"event": "evaluation", "step": n + 1, "set": "test", **told, "seconds": 0.1}))
                text.append(json.dumps({"event": "epoch", "epoch": epoch, "step": n + 1, "train_loss": event["loss"], **told, "seconds": 1.0}))
        text.append(json.dumps({"event": "done", "steps": steps, "epochs": 20, "seconds": 20.0}))
        file = Path(f"log-{kind}.jsonl")
        file.write_text("\n".join(text) + "\n")
        logs.append(file)
    settings = (source / "run.toml").read_text()
    costs = json.loads((source / "costs.json").read_text())
    for n in range(count):
        batch = (10, 50, 100, 150, 200, 250)[n % 6]
        run = Path("many") / f"run-{n:03}"
        run.mkdir(parents=True)
        text = re.sub(r"batch = 25", f"batch = {batch}", settings)
        text = re.sub(r'seed = "0"', f'seed = "{n // 36}"', text)
        text = text.replace("layouts/dp.layout", f"layouts/layout{n // 6 % 6}.layout")
        (run / "run.toml").write_text(text)
        (run / "costs.json").write_text(json.dumps(dict(costs, batch=batch)))
        # The disk need not hold gigabytes.
        os.link(logs[n % 6], run / "metrics.jsonl")
    return Path("many")


def opened(driver, path):
    """Seconds until all charts of a page are drawn: by the clock, and of the processor in the page's own thread."""
    driver.execute_cdp_cmd("Performance.disable", {})
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    task = lambda: {m["name"]: m["value"] for m in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}["TaskDuration"]
    driver.get("about:blank")
    before = task()
    seconds = open_page(driver, path)
    return seconds, task() - before


def many(study):
    """With LONG set, 500 runs of 10,000 steps: under 5 MB, and open in under 2 s."""
    count, steps = (500, 10_000) if os.environ.get("LONG") else (60, 1000)
    folder = copies(study, count, steps)
    begin = time.monotonic()
    meshwright(BINARY, "report", str(folder), "--output", "many.html")
    making = time.monotonic() - begin
    size = Path("many.html").stat().st_size / 1e6
    with browser() as driver:
        opening, own = min(opened(driver, "many.html") for _ in range(3))
        assert driver.execute_script("return [...page.charts.values()].every(c => c.figure.hidden || c.instance)")
        assert len(points(driver, "steps")) == count and len(lines(driver, "batch-test-loss")) == 6
        assert len(column(driver, "runs", "run")) == count
        fits(driver)
        quiet(driver)
        shot(driver, "many-light-1280")
    print(f"{count} runs of {steps} steps: made in {making:.2f} s, {size:.2f} MB, open in {opening:.2f} s ({own:.2f} s of its processor)")
    # On a machine that is busy with something else, a browser waits for its turn: what it computes itself is what counts.
    busy = os.getloadavg()[0] > os.cpu_count()
    assert size < 5 and (own if busy else opening) < 2, (size, opening, own)

def seeds_are_told_apart(_):
    """Where runs differ in their seeds alone, each seed has a color and a name in the chart of steps."""
    meshwright(BINARY, "sweep", "points/points.mw", "--data", "points/data", "--seeds", "3", "--epochs", "2", "--run", "seeds",
               "--report", "seeds.html")
    with browser() as driver:
        open_page(driver, "seeds.html")
        keys = legend(driver, "steps")
        assert [key.get_attribute("data-name") for key in keys] == ["seed 0", "seed 1", "seed 2"], keys
        colors = driver.execute_script("return page.charts.get('steps').current.series.map(s => s.lineStyle.color)")
        assert len(set(colors)) == 3, colors
        shot(driver, "seeds-light-1280")
        quiet(driver)


def main():
    study, page = sweep()
    begin = time.monotonic()
    passed = 0
    drawn = (every_chart_is_drawn, numbers_are_those_of_the_runs, losses_are_smoothed, results_stand_over_what_runs_are_made_with,
             costs_are_those_of_the_plans, speeds_are_those_of_the_table)
    used = (legends_hide_and_show, rows_are_sorted, a_filter_holds_for_rows_and_charts, hover_says_what_is_there, charts_zoom, themes_change)
    shared = [(1280, test) for test in (*drawn, heads_are_those_of_the_points)]
    shared += [(width, test) for width in WIDTHS for test in used] + [(1280, paper_holds_all_of_it), (1280, looks)]
    with browser() as driver:
        open_page(driver, page)
        for width, test in shared:
            resize(driver, width)
            rest(driver)
            settled(driver)
            test(driver, study)
            quiet(driver)
            passed += 1
            print(f"test report::{test.__name__} at {width} ... ok")
        resize(driver, 1280)
        downloads = Path("downloads").resolve()
        downloads.mkdir()
        charts_are_downloaded(driver, downloads)
        quiet(driver)
        passed += 1
        print("test report::charts_are_downloaded ... ok")
    for test in (settings_that_differ, seeds_are_told_apart, what_a_search_chose_is_named, live, many):
        test(study)
        passed += 1
        print(f"test report::{test.__name__} ... ok")
    print(f"test result: ok. {passed} passed; 0 failed (report, {time.monotonic() - begin:.1f} s)")


main()
