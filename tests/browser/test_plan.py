"""The page of a plan: its list by keyboard, values on the mesh, memory and time, two layouts, and models of many devices."""

import html
import json
import os
import sys
import time
from pathlib import Path

from browser import (WIDTHS, browser, can_fail, click, column, fits, frames, is_drawn, meshwright, on_paper, open_page, points, quiet, resize, rest,
                     said, settled, shot, stands_alone, theme, theme_of)
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

BINARY = sys.argv[1]
MLP = ["mnist_mlp", "--mesh", "r=2,c=2"]
DP = "batch -> r"
BOTH = "batch -> r; hidden1 -> c"
MACHINE = ["--machine", "dgx-h100"]


def made(name, *words):
    """Writes a page."""
    meshwright(BINARY, "explain", *words, "--html", name)
    return name


def explained(*words):
    return json.loads(meshwright(BINARY, "explain", *words, "--format", "json"))


def planned(*words):
    return json.loads(meshwright(BINARY, "explain", *words, "--emit", "plan", "--format", "json"))


def text(driver, selector):
    return driver.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def texts(driver, selector):
    return driver.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)


def rows(driver, kind):
    """The rows of a kind that can be seen: their labels."""
    return driver.execute_script(
        """return [...document.querySelectorAll(`.steps li.${arguments[0]}`)].filter(i => i.checkVisibility())
        .map(i => i.getAttribute("aria-label"));""",
        kind,
    )


def row(driver, label):
    """The row of a step whose label begins so."""
    found = driver.find_element(By.CSS_SELECTOR, f'.steps li[aria-label^="{label}"] > .row')
    driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", found)
    return found


def keys(driver, *all_keys):
    for key in all_keys:
        driver.switch_to.active_element.send_keys(key)
    return driver.execute_script("return document.activeElement.getAttribute('aria-label')")


def facts(driver):
    """What is said of the selected step."""
    return dict(zip(texts(driver, ".detail dt"), texts(driver, ".detail dd")))


def hovered(driver, element):
    """What is shown while the pointer is on an element."""
    driver.execute_script("arguments[0].scrollIntoView({ block: 'center', inline: 'center' })", element)
    # What is shown goes when the page scrolls, which a browser tells with the next frames.
    frames(driver)
    tip = driver.find_element(By.ID, "tip")
    for _ in range(5):
        # A pointer that already is where it is to go enters nothing.
        away = ActionBuilder(driver)
        away.pointer_action.move_to_location(1, 1)
        away.perform()
        ActionChains(driver).move_to_element(element).perform()
        if tip.is_displayed():
            break
        time.sleep(0.2)
    assert tip.is_displayed()
    left, top, right, bottom, width, height = driver.execute_script(
        "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom, innerWidth, innerHeight]", tip)
    assert 0 <= left and 0 <= top and right <= width and bottom <= height, (left, top, right, bottom)
    return tip.text.split("\n")


def devices(driver, figure=0):
    return driver.find_elements(By.CSS_SELECTOR, ".detail figure")[figure].find_elements(By.CSS_SELECTOR, "g.device")


def filled(driver, device):
    """What of its outline a device's shard takes: x, y, width, height of 1."""
    return driver.execute_script(
        """const [whole, held] = arguments[0].querySelectorAll("rect");
        const of = (r, name) => Number(r.getAttribute(name) ?? 0);
        return [of(held, "x") / of(whole, "width"), of(held, "y") / of(whole, "height"),
            of(held, "width") / of(whole, "width"), of(held, "height") / of(whole, "height")];""",
        device,
    )


def a_page_of_two_layouts_is_drawn(driver):
    open_page(driver, made("two.html", *MLP, "--layout", DP, "--layout", BOTH, *MACHINE))
    quiet(driver)
    plan, report = planned(*MLP, "--layout", DP), explained(*MLP, "--layout", DP)
    count = len(plan["steps"])
    memory = [(name, n) for name, n in points(driver, "memory") if n]
    assert {n for _, n in memory} == {count}, memory
    assert {"parameters", "optimizer state", "gradients", "residuals", "workspace"} <= {name for name, _ in memory}
    bars = [(name, n) for name, n in points(driver, "timeline") if n]
    assert sum(n for name, n in bars if name == "all-reduce") == len(report["collectives"]) == 3
    assert {"forward", "backward", "update"} <= {name for name, _ in bars}
    assert is_drawn(driver, "memory") and is_drawn(driver, "timeline")
    can_fail(driver, "memory")
    can_fail(driver, "timeline")
    peak = driver.execute_script("return page.bytes(arguments[0])", report["per_device"]["peak_bytes"])
    assert f"Largest of {peak}" in text(driver, "main")
    cells = dict(zip(texts(driver, "#table-totals tbody th"), texts(driver, "#table-totals tbody td.now")))
    moved = driver.execute_script("return page.bytes(arguments[0])", report["per_device"]["collective_bytes"])
    assert (cells["mesh"], cells["collectives"], cells["peak memory"], cells["moved by collectives"]) == ("r=2 x c=2", "3", peak, moved)


def launches_lead_to_their_steps(driver):
    words = ["gpt", "--preset", "tiny", "--dim", "layers=2", "--precision", "bf16", "--device", "cuda"]
    open_page(driver, made("launches.html", *words))
    quiet(driver)
    plan = json.loads(meshwright(BINARY, "explain", *words, "--emit", "device", "--format", "json"))
    assert f"cuda: {plan['totals']['kernels']} kernels a step" in text(driver, "main")
    rows = lambda: driver.find_elements(By.CSS_SELECTOR, "#table-launches tbody tr")
    in_order = [row.text for row in rows()]
    assert len(in_order) > 60 and "over layers" in " ".join(in_order)
    click(driver, rows()[-1].find_element(By.CSS_SELECTOR, "button"))
    launch = plan["launches"][int(in_order[-1].split()[0])]
    assert facts(driver)["step"].startswith(f"{launch['steps'][-1]} of "), facts(driver)
    [button] = [b for b in driver.find_elements(By.CSS_SELECTOR, ".filter button") if b.text == "By bytes"]
    click(driver, button)
    most = plan["launches"][int(rows()[0].text.split()[0])]
    times = int(texts(driver, "#table-launches tbody tr:first-child td")[4])
    assert times * (most["read"] + most["written"]) >= max(l["read"] + l["written"] for l in plan["launches"])


def the_switch_marks_what_differs(driver):
    open_page(driver, made("two.html", *MLP, "--layout", DP, "--layout", BOTH))
    compared = json.loads(meshwright(BINARY, "compare", *MLP, "--layout", DP, "--layout", BOTH, "--format", "json"))
    changes = compared["differences"][0]["changes"]
    shown = column(driver, "differences", "change")
    assert [s.split()[1] for s in shown] == [c["change"] for c in changes] and len(changes) == 4
    # Sorting and filtering are those of all tables.
    click(driver, driver.find_element(By.XPATH, "//div[@id='table-differences']//th/button[text()='value']"))
    values = column(driver, "differences", "value")
    assert values == sorted(values)
    driver.find_element(By.CSS_SELECTOR, "#differences input[type=search]").send_keys("appears")
    assert column(driver, "differences", "value") == ["h2"]
    before = rows(driver, "collective")
    assert sum("none" in label for label in before) == 0
    click(driver, driver.find_element(By.XPATH, f"//label[span='{BOTH}']"))
    after = rows(driver, "collective")
    assert len(after) == 2 and [DP + " has none" in label for label in after] == [True, False], after
    assert texts(driver, ".steps .mark") == ["only here", "~"]
    # The same step stays selected, where the other layout has it.
    click(driver, row(driver, "h1, contract"))
    click(driver, driver.find_element(By.XPATH, f"//label[span='{DP}']"))
    assert texts(driver, ".steps [aria-selected=true] .path") == ["h1"]
    assert texts(driver, "#table-totals thead .now") == [DP]
    quiet(driver)


def the_list_is_gone_through_by_keyboard(driver):
    open_page(driver, made("two.html", *MLP, "--layout", BOTH))
    tree = driver.find_element(By.CSS_SELECTOR, ".steps")
    assert tree.get_attribute("role") == "tree"
    assert driver.execute_script("return document.querySelectorAll('.steps [tabindex=\"0\"]').length") == 1
    driver.execute_script("document.querySelector('.steps [tabindex=\"0\"]').focus()")
    assert keys(driver, Keys.HOME).startswith("Held from the start")
    assert driver.switch_to.active_element.get_attribute("aria-expanded") == "false"
    hidden = len(rows(driver, "held"))
    keys(driver, Keys.ARROW_RIGHT)
    assert hidden == 0 and len(rows(driver, "held")) == len(planned(*MLP, "--layout", BOTH)["program_inputs"])
    assert keys(driver, Keys.ARROW_RIGHT).startswith("image, inputs")
    assert "held from the start" in text(driver, ".detail")
    assert keys(driver, Keys.ARROW_LEFT).startswith("Held") and keys(driver, Keys.ARROW_LEFT).startswith("Held")
    assert not rows(driver, "held")
    assert keys(driver, Keys.ARROW_DOWN).startswith("Forward") and keys(driver, Keys.ARROW_DOWN).startswith("x, map")
    assert facts(driver)["step"].startswith("0 of")
    assert keys(driver, Keys.END).endswith("B") and driver.execute_script("return document.querySelectorAll('.steps [tabindex=\"0\"]').length") == 1
    box = driver.find_element(By.CSS_SELECTOR, "#moves-only")
    click(driver, box)
    assert len(rows(driver, "collective")) == 2 and not rows(driver, "compute")
    driver.find_element(By.CSS_SELECTOR, ".listed input[type=search]").send_keys("h2 all-reduce")
    assert [label.split(",")[0] for label in rows(driver, "collective")] == ["h2", "7 values"]
    driver.find_element(By.CSS_SELECTOR, ".listed input[type=search]").send_keys(" nothing")
    assert "No step is like that" in text(driver, ".listed")
    quiet(driver)


def values_are_drawn_on_the_mesh(driver):
    open_page(driver, made("two.html", *MLP, "--layout", BOTH))
    at = row(driver, "h2, all-reduce")
    hover = hovered(driver, at)
    assert any("204,800 bytes" in line for line in hover) and any("line std:nn:" in line for line in hover), hover
    # Of the two rules that stand in one line, the one behind it, by its number.
    assert any("`hidden1` is summed" in line for line in hover) and "rule 2: hidden1 -> c (line 1 of the layout)" in hover, hover
    click(driver, at)
    told_of = facts(driver)
    assert told_of["bytes"].startswith("204,800 (200 KiB)") and told_of["because"] == "`hidden1` is summed", told_of
    assert told_of["rule"] == "2: hidden1 -> c (line 1 of the layout)" and told_of["group"] == "2 devices along c, in each of 2 groups", told_of
    assert len(devices(driver, 0)) == len(devices(driver, 1)) == 4
    partial = driver.execute_script("return [...document.querySelectorAll('.detail figure')].map(f => f.querySelectorAll('[fill=\"url(#partial)\"]').length)")
    assert partial == [4, 0]
    # A quarter each, by rank: rows of the batch down, columns of the hidden dim across.
    click(driver, row(driver, "h1, contract"))
    last = len(driver.find_elements(By.CSS_SELECTOR, ".detail figure")) - 1
    quarters = [filled(driver, d) for d in devices(driver, last)]
    assert quarters == [[0, 0, 0.5, 0.5], [0.5, 0, 0.5, 0.5], [0, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]], quarters
    told = hovered(driver, devices(driver, last)[2])
    assert told == ["r=1, c=0 (rank 2)", "batch 50..100 of 100", "hidden1 0..512 of 1024"], told
    # The keyboard goes from device to device.
    driver.execute_script("arguments[0].focus()", devices(driver, last)[0])
    assert keys(driver, Keys.ARROW_DOWN).startswith("r=1, c=0") and keys(driver, Keys.ARROW_RIGHT).startswith("r=1, c=1")
    # Of a bucket, one value at a time.
    click(driver, row(driver, "7 values, all-reduce"))
    choice = driver.find_element(By.ID, "part")
    assert len(choice.find_elements(By.TAG_NAME, "option")) == 7
    driver.execute_script("arguments[0].value = '2'; arguments[0].dispatchEvent(new Event('change'))", choice)
    assert driver.execute_script("return document.activeElement.id") == "part"
    assert "overlap" in facts(driver) and "waited for at step" in facts(driver)["overlap"]
    quiet(driver)


def charts_can_be_used(driver):
    open_page(driver, made("two.html", *MLP, "--layout", DP, "--layout", BOTH, *MACHINE))
    key = driver.find_element(By.XPATH, "//figure[@id='chart-memory']//div[@class='legend']/button[.='parameters']")
    click(driver, key)
    shown = "return page.charts.get('memory').instance.getOption().legend[0].selected"
    assert key.get_attribute("aria-pressed") == "false" and driver.execute_script(shown)["parameters"] is False
    click(driver, key)
    assert driver.execute_script(shown)["parameters"] is True
    for chart in ("memory", "timeline"):
        stands_alone(driver, chart)
        keys_, drawn = driver.execute_script(
            """const made = page.charts.get(arguments[0]);
            return [[...made.keys.querySelectorAll("button[data-name]")].map(k => [k.dataset.name, k.style.getPropertyValue("--mark")]),
                made.current.series.filter(s => s.name).map(s => [s.name, s.color])];""", chart)
        assert keys_ == drawn and len(keys_) > 2, (keys_, drawn)
        if os.environ.get("SHOTS"):
            open(f"{os.environ['SHOTS']}/file-plan-{chart}.svg", "w").write(driver.execute_script("return page.svg(page.charts.get(arguments[0]))", chart))
    # Up and down reach what else is on the timeline.
    first = said(driver, "timeline", Keys.ARROW_RIGHT)
    reached = [said(driver, "timeline", Keys.ARROW_DOWN) for _ in range(3)]
    assert "all-reduce" not in first and any("all-reduce" in told and "over r" in told for told in reached), (first, reached)
    # A click selects the step that is there.
    assert not facts(driver)["step"].startswith("8 of")
    # Once, however often the chart was drawn.
    theme(driver)
    theme(driver)
    driver.execute_script(
        "window.selections = 0; new MutationObserver(all => { window.selections += all.length; }).observe(document.querySelector('.detail'), { childList: true })")
    driver.execute_script("document.getElementById('chart-memory').scrollIntoView({ block: 'center' })")
    x, y = driver.execute_script("const c = page.charts.get('memory').instance; return c.convertToPixel({ gridIndex: 0 }, [8.3, 1])")
    place = driver.find_element(By.CSS_SELECTOR, "#chart-memory .chart")
    box = place.rect
    ActionChains(driver).move_to_element_with_offset(place, int(x - box["width"] / 2), int(y - box["height"] / 2)).click().perform()
    assert facts(driver)["step"].startswith("8 of"), facts(driver)
    assert driver.execute_script("return window.selections") == 1
    tip = driver.execute_script("return document.querySelector('#chart-memory .chart').textContent")
    assert "step 8:" in tip and "parameters" in tip, tip
    click(driver, driver.find_element(By.XPATH, "//button[.='At the selected step']"))
    assert "at step 8" in text(driver, "main")
    quiet(driver)


def times_are_those_of_the_estimate(driver):
    words = [*MLP, "--layout", DP]
    open_page(driver, made("timed.html", *words, *MACHINE))
    estimate = json.loads(meshwright(BINARY, "estimate", *words, *MACHINE, "--format", "json"))
    told = driver.find_element(By.XPATH, "//p[starts-with(., 'Nothing here is measured')]").text
    shown = lambda seconds: driver.execute_script("return planCharts.time(arguments[0])", seconds)
    assert f" a step takes {shown(estimate['seconds'])} +- 15 % (data sheets, not calibrated)" in told, told
    axis = driver.execute_script("return page.charts.get('timeline').instance.getOption().xAxis[0]")
    unit = {"s": 1, "ms": 1e3, "µs": 1e6}[axis["name"].split()[-1]]
    assert abs(axis["max"] / unit / estimate["seconds"] - 1) < 1e-9, axis
    collective = lambda: driver.find_element(By.CSS_SELECTOR, ".steps li.collective > .row")
    driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", collective())
    click(driver, collective())
    at = int(facts(driver)["step"].split()[0])
    one = next(c for c in estimate["collectives"] if c["step"] == at)
    assert facts(driver)["estimated"].startswith(f"{shown(one['seconds'])} in a step"), facts(driver)
    # Without a machine nothing is drawn, and the page says how to have it.
    open_page(driver, made("untimed.html", *words))
    assert not driver.find_elements(By.ID, "chart-timeline") and "Nothing here is measured" not in text(driver, "main")
    assert "--mesh r=2,c=2 --machine dgx-h100 --html plan.html" in text(driver, "main")
    fits(driver)
    driver.execute_script("arguments[0].scrollIntoView({ block: 'center' })", collective())
    click(driver, collective())
    assert "group" in facts(driver) and "estimated" not in facts(driver)
    quiet(driver)


def loops_are_folded(driver):
    words = ["gpt", "--preset", "tiny", "--layout", "zero3", "--mesh", "data=4"]
    open_page(driver, made("gpt.html", *words))
    report = explained(*words)
    loops = rows(driver, "loop")
    assert loops == ["loop over layers, 4 iterations"] * len(report["loops"]) and len(loops) == 2
    inside = sum("in_loop" in c for c in report["collectives"])
    outside = len(report["collectives"]) - inside
    assert inside > 0 and len(rows(driver, "collective")) == outside
    at = driver.find_element(By.CSS_SELECTOR, ".steps li.loop")
    assert at.get_attribute("aria-expanded") == "false"
    driver.execute_script("arguments[0].focus()", at)
    keys(driver, Keys.ARROW_RIGHT)
    first = sum(c.get("in_loop") == 0 for c in report["collectives"])
    assert at.get_attribute("aria-expanded") == "true" and len(rows(driver, "collective")) == outside + first
    assert "repeat layers × 4" in texts(driver, ".steps li.loop > .row > .path")[0]
    lags = [s for s in planned(*words)["steps"] if s.get("lag")]
    driver.execute_script("document.querySelector('.listed input[type=search]').focus()")
    click(driver, row(driver, "layers.block.norm1.c, reduce"))
    assert lags and facts(driver)["lag"] == "1 turn of the loop behind what runs ahead"
    quiet(driver)


def the_passes_of_stages_are_drawn(driver):
    """A row a stage, a box a pass, and what each stage holds; a layout without stages has none."""
    staged = "layers -> pipe; microbatches 4; schedule zb_h1"
    words = ["gpt", "--preset", "tiny", "--mesh", "pipe=2"]
    open_page(driver, made("stages.html", *words, "--layout", staged))
    told = explained(*words, "--layout", staged)["pipeline"]
    assert is_drawn(driver, "pipeline")
    option = driver.execute_script(
        """const o = page.charts.get("pipeline").instance.getOption();
        return [o.yAxis[0].data, o.series.map(s => [s.name, s.data.map(d => [d[0], d[3]])])];""")
    assert option[0] == ["stage 0", "stage 1"], option
    assert {name: len(data) for name, data in option[1]} == {"forward": 8, "backward": 8, "gradients of weights": 8}, option
    for _, data in option[1]:
        assert [micro for stage, micro in data if stage == 1] == [0, 1, 2, 3], data
    about = text(driver, "main")
    assert "2 stages over pipe, 4 microbatches, zb_h1." in about and f"waits for {100 * told['bubble']:.1f} %" in about
    assert (f'"{told["balanced"]}" would share' in about) == ("balanced" in told)
    assert texts(driver, "#chart-pipeline ~ div tbody td:nth-child(5)") == [str(s["in_flight"]) for s in told["stages"]]
    quiet(driver)


def halos_are_told(driver):
    open_page(driver, made("unet.html", "unet", "--layout", "unet_tiles"))
    click(driver, row(driver, "small1, permute over y"))
    assert "Lighter" in text(driver, ".detail")
    told = hovered(driver, devices(driver, 1)[0])
    assert "mid_rows 0..9 of 16, its own shard is 0..8" in told, told
    tall, own = driver.execute_script(
        "return [...arguments[0].querySelectorAll('rect')].slice(1, 3).map(r => Number(r.getAttribute('height')))", devices(driver, 1)[0])
    assert tall > own > 0
    quiet(driver)


def any_number_of_axes_and_devices(driver):
    open_page(driver, made("axes.html", "mlp", "--layout", "batch -> a, b; hidden -> c", "--mesh", "a=2,b=3,c=2,d=2"))
    click(driver, row(driver, "h, contract"))
    assert len(devices(driver, 0)) == 24
    assert texts(driver, ".detail figure:first-child .block") == [f"a={a}, b={b}" for a in range(2) for b in range(3)]
    assert "16 to 17 each: uneven, nothing is padded" in text(driver, ".detail")
    quiet(driver)
    name = made("large.html", "gpt", "--preset", "gpt3_175b", "--layout", "megatron_sp", "--layout", "zero3", "--mesh", "data=128,model=8")
    assert os.path.getsize(name) < 2_000_000
    # The best of some, and against a small page: others may share the machine.
    small, took = (min(open_page(driver, page) for _ in range(3)) for page in ("axes.html", name))
    assert took < max(2, 3 * small), (took, small)
    assert len(devices(driver, 0)) == 64
    assert "Of 1,024 devices, 64 are drawn: 8 of 128 along data." in text(driver, ".detail")
    assert hovered(driver, devices(driver, 0)[63])[0] == "data=127, model=7 (rank 1023)"
    quiet(driver)


def one_device_has_nothing_to_compare(driver):
    open_page(driver, made("one.html", "mlp"))
    assert not driver.find_elements(By.CSS_SELECTOR, "fieldset") and "What differs" not in text(driver, "main")
    assert not rows(driver, "collective") and len(devices(driver, 0)) == 1
    assert hovered(driver, devices(driver, 0)[0])[0] == "the device (rank 0)"
    quiet(driver)


def paper_holds_all_of_it(driver):
    # Enough that differs for a table that is longer than the window.
    open_page(driver, made("long.html", "gpt", "--preset", "tiny", "--layout", "megatron_sp", "--layout", "zero3", "--mesh", "data=4,model=2", *MACHINE))
    assert len(column(driver, "differences", "change")) > 30
    on_paper(driver)
    quiet(driver)


def both_themes_and_widths(driver):
    pages = [("two", MLP + ["--layout", DP, "--layout", BOTH]), ("gpt", ["gpt", "--preset", "tiny", "--layout", "dp", "--layout", "zero3", "--mesh", "data=4"]),
             ("unet", ["unet", "--layout", "unet_tiles"]), ("bert", ["bert", "--preset", "tiny", "--layout", "dp", "--mesh", "data=4"]),
             ("conv", ["mnist_conv", "--layout", "batch -> r; hidden1 -> c", "--mesh", "2x2"]),
             ("stages", ["gpt", "--preset", "tiny", "--layout", "batch -> data; layers -> pipe; microbatches 4", "--mesh", "pipe=2,data=2"])]
    for name, words in pages:
        open_page(driver, made(f"{name}.html", *words, *MACHINE))
        for width in WIDTHS:
            resize(driver, width)
            rest(driver)
            papers = set()
            for _ in range(2):
                papers.add(theme(driver))
                fits(driver)
                now = driver.execute_script("return document.documentElement.dataset.theme")
                shot(driver, f"plan-{name}-{width}-{now}")
                assert is_drawn(driver, "memory") and is_drawn(driver, "timeline")
            assert len(papers) == 2
        resize(driver, 1280)
        quiet(driver)


def in_a_notebook_it_has_the_theme_of_the_notebook(driver):
    """Several in one page, each in a frame; a page that is switched leaves the others as they are."""
    frame = f'<iframe style="width: 100%; height: 20em" srcdoc="{html.escape(Path(made("framed.html", *MLP, "--layout", DP)).read_text())}"></iframe>'
    for color, of_notebook, other in (("#111111", "dark", "light"), ("white", "light", "dark")):
        Path("notebook.html").write_text(f'<body style="background: {color}"><div>{frame}</div>{frame}</body>')
        driver.get(Path("notebook.html").resolve().as_uri())

        def themes():
            found = []
            for n in range(2):
                driver.switch_to.frame(n)
                settled(driver)
                found.append(theme_of(driver))
                driver.switch_to.default_content()
            return found

        assert themes() == [of_notebook] * 2
        shot(driver, f"plan-framed-{of_notebook}")
        driver.switch_to.frame(1)
        theme(driver)
        driver.switch_to.default_content()
        assert themes() == [of_notebook, other]
        # The notebook's own theme is switched.
        driver.execute_script("document.body.style.background = arguments[0]", "white" if of_notebook == "dark" else "#111111")
        assert themes() == [other] * 2
        quiet(driver)


TESTS = [
    a_page_of_two_layouts_is_drawn, the_switch_marks_what_differs, the_list_is_gone_through_by_keyboard, values_are_drawn_on_the_mesh,
    charts_can_be_used, times_are_those_of_the_estimate, loops_are_folded, the_passes_of_stages_are_drawn, halos_are_told, any_number_of_axes_and_devices,
    one_device_has_nothing_to_compare, launches_lead_to_their_steps,
]
# Where a width is nothing new.
ONCE = [paper_holds_all_of_it, in_a_notebook_it_has_the_theme_of_the_notebook, both_themes_and_widths]

with browser() as opened:
    for width, test in [(width, test) for width in WIDTHS for test in TESTS] + [(1280, test) for test in ONCE]:
        resize(opened, width)
        test(opened)
        print(f"test {test.__name__} at {width} ... ok")
print(f"test result: ok. {len(WIDTHS) * len(TESTS) + len(ONCE)} passed; 0 failed (the page of a plan)")
