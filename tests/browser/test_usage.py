"""The page of `runs stats`: how runs ended, device time by model, wall times, and the table."""

import json
import sys
from pathlib import Path

import browser as b
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

HISTORY = '{"event":"start","time":"2026-01-31T12:00:00.000Z","step":0,"job":{"launcher":"slurm","id":"%d","submitted":"2026-01-31T11:58:00Z","started":"2026-01-31T11:59:30Z"}}\n'
FAILED = '{"event":"failed","time":"2026-01-31T13:00:00.000Z","error":"%s"}\n'
STEP = '{"event":"step","step":1,"loss":1.5,"seconds":0.5,"mfu":0.3,"waiting":0.1,"time":"2026-01-31T%02d:%02d:00.000Z"}\n'
DONE = '{"event":"done","steps":1,"epochs":0,"seconds":1,"peak_memory_bytes":1,"time":"2026-01-31T%02d:%02d:01.000Z"}\n'


def made(folder, n):
    """A run: every fourth failed, every seventh was interrupted; of three models, on meshes of 1 to 8 devices."""
    run = Path(folder) / f"{['gpt', 'mnist_conv', 'bert'][n % 3]}-{n}"
    run.mkdir(parents=True)
    devices = 2 ** (n % 4)
    model = ["gpt", "mnist_conv", "bert"][n % 3]
    mesh = "" if devices == 1 else f"data={devices}"
    run.joinpath("run.toml").write_text(
        f'model = "{model}"\nfile = "{model}.mw"\nseed = "{n}"\nprecision = "f32"\nmesh = "{mesh}"\nlayout = []\n'
        'epochs = 1\neval = true\nexamples = 35\nfingerprint = "f"\n[set]\n[dims]\nbatch = 10\n[consts]\n'
    )
    hour, minute = 12 + n % 9, (7 * n) % 59
    failed = n % 4 == 3
    errors = ["E0517: the loss is NaN", "E0520: rank 0 timed out after 300 s", "E0511: the disk is full"]
    history = HISTORY % n + (FAILED % errors[n % 3] if failed else "")
    run.joinpath("history.jsonl").write_text(history)
    ended = "" if failed or n % 7 == 1 else DONE % (hour, minute)
    run.joinpath("metrics.jsonl").write_text(STEP % (hour, minute) + ended)


def main(binary):
    for n in range(40):
        made("runs", n)
    b.meshwright(binary, "runs", "stats", "runs", "--html", "usage.html")
    rows = [json.loads(line) for line in b.meshwright(binary, "runs", "stats", "runs", "--format", "jsonl").splitlines()]
    for width in b.WIDTHS:
        with b.browser(width) as driver:
            b.open_page(driver, "usage.html")
            charts = driver.execute_script("return [...page.charts.keys()]")
            assert charts == ["ends", "models", "walls"], charts
            for chart in charts:
                assert b.is_drawn(driver, chart), chart
                b.can_fail(driver, chart)
                b.stands_alone(driver, chart)
            # Device time is told of each state, by keyboard.
            first = b.said(driver, "models", Keys.ARROW_RIGHT)
            others = [b.said(driver, "models", Keys.ARROW_DOWN) for _ in range(2)]
            assert "failed" in first and "finished" in others[0] and "interrupted" in others[1], (first, others)
            # The pointer is told the same.
            x, y = driver.execute_script(
                "const c = page.charts.get('ends').instance; return c.convertToPixel({ gridIndex: 0 }, [1, 0])")
            place = driver.find_element(By.CSS_SELECTOR, "#chart-ends .chart")
            driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
            box = place.rect
            ActionChains(driver).move_to_element_with_offset(place, int(x - box["width"] / 2), int(y - box["height"] / 2)).perform()
            b.rest(driver)
            tip = driver.execute_script("return document.querySelector('#chart-ends .chart').lastElementChild.innerText")
            name, count = driver.execute_script(
                "const { current } = page.charts.get('ends'); return [current.yAxis.data[0], current.series[0].data[0].value]")
            assert name in tip and str(count) in tip, (tip, name, count)
            # All runs are in the bars.
            ends = driver.execute_script("return page.charts.get('ends').instance.getOption().series[0].data.map(d => d.value)")
            assert sum(ends) == len(rows), ends
            walls = driver.execute_script(
                "return page.charts.get('walls').instance.getOption().series.flatMap(s => s.data)"
            )
            assert sum(walls) == sum(1 for r in rows if r["wall_seconds"] > 0), walls
            hours = driver.execute_script(
                "return page.charts.get('models').instance.getOption().series.flatMap(s => s.data)"
            )
            assert abs(sum(hours) - sum(r["device_hours"] for r in rows)) < 1e-6, hours
            # A state has one color: in the legend, in the bars, and in both charts.
            for chart in ("models", "walls"):
                keys, bars = driver.execute_script(
                    """const plain = (color) => { const i = document.createElement("i"); i.style.color = color; return i.style.color; };
                    const made = page.charts.get(arguments[0]);
                    return [
                      [...made.keys.querySelectorAll("button")].map(k => [k.textContent, getComputedStyle(k.querySelector("i")).backgroundColor]),
                      made.instance.getModel().getSeries().map(s => [s.name, plain(s.getData().getVisual("style").fill)]),
                    ];""",
                    chart,
                )
                keys = dict(keys)
                assert len(bars) == 3 and all(keys[name] == color for name, color in bars), (chart, keys, bars)
            # The legend takes a state out and in again.
            key = driver.find_element(By.CSS_SELECTOR, "#chart-walls .legend button")
            b.click(driver, key)
            assert key.get_attribute("aria-pressed") == "false"
            b.click(driver, key)
            b.fits(driver)
            # Sorting, and filtering by words and by numbers, under the names that the table has as CSV and JSON.
            by_wall = next(h for h in driver.find_elements(By.CSS_SELECTOR, "#table-runs th button") if h.text == "wall time")
            b.click(driver, by_wall)
            wall = {r["run"]: r["wall_seconds"] for r in rows}
            order = [wall[name] for name in b.column(driver, "runs", "run")]
            assert order == sorted(order) and len(order) == len(rows)
            b.click(driver, by_wall)
            assert [wall[name] for name in b.column(driver, "runs", "run")] == order[::-1]
            box = driver.find_elements(By.CSS_SELECTOR, ".filter input")[1]
            box.send_keys("failed devices>=4")
            expected = [r for r in rows if r["state"] == "failed" and r["devices"] >= 4]
            assert len(b.column(driver, "runs", "run")) == len(expected) > 0
            box.clear()
            limit = order[len(order) // 2]
            box.send_keys(f"wall_seconds>{limit} device_hours>0")
            assert sorted(b.column(driver, "runs", "run")) == sorted(r["run"] for r in rows if r["wall_seconds"] > limit)
            box.clear()
            box.send_keys(" ")
            driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
            b.shot(driver, f"usage-{width}-light")
            light = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert b.theme(driver) != light
            for chart in charts:
                assert b.is_drawn(driver, chart), chart
            b.shot(driver, f"usage-{width}-dark")
            b.theme(driver)
            b.on_paper(driver)
            b.quiet(driver)
    print("test result: ok. 1 passed; 0 failed: the page of `runs stats`")


main(sys.argv[1])
