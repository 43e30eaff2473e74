"""A headless Chromium over WebDriver, and what every page of Meshwright must hold to."""

import base64
import os
import re
import subprocess
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from selenium import webdriver
from selenium.webdriver.common.by import By

WIDTHS = (1280, 390)


def meshwright(binary, *words):
    """Runs a command that must succeed, and gives what it prints."""
    done = subprocess.run([binary, *words], capture_output=True, text=True)
    assert done.returncode == 0, f"meshwright {' '.join(words)}: {done.returncode}\n{done.stderr}"
    return done.stdout


@contextmanager
def browser(width=1280, height=900):
    """A browser that keeps what its console says."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Nothing but the page itself: a request to anywhere else fails, and its failure stands on the console.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        resize(driver, width, height)
        yield driver
    finally:
        driver.quit()


def resize(driver, width, height=900):
    """Makes the page so many CSS pixels wide, narrower than windows can be."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def open_page(driver, path):
    """Opens a file; gives the seconds until its charts are drawn."""
    start = time.monotonic()
    driver.get(Path(path).resolve().as_uri())
    settled(driver)
    return time.monotonic() - start


def settled(driver):
    """Waits until all charts are drawn as they are to be, and stand on the screen: before a page's first frame the browser drops input."""
    driver.execute_async_script("page.settled().then(arguments[0])")
    frames(driver)


def frames(driver):
    """Waits for three frames: what a page does in the next frame, and what follows from it, is done then."""
    driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))")


def rest(driver, seconds=0.3):
    """Waits by the clock of the page, then for frames: what the page put off for less time before is done then, however busy the machine is."""
    driver.execute_async_script("setTimeout(arguments[1], arguments[0])", 1000 * seconds)
    frames(driver)


def click(driver, found):
    """Clicks on an element with the pointer, again if the click did not arrive: on a busy machine what moves on the page is in its way."""
    driver.execute_script("arguments[0].addEventListener('click', () => { window.arrived = true; }, { capture: true, once: true })", found)
    for _ in range(5):
        driver.execute_script("window.arrived = false; arguments[0].scrollIntoView({ block: 'center', inline: 'center' })", found)
        frames(driver)
        found.click()
        if driver.execute_script("return window.arrived"):
            return
    raise AssertionError(f"no click arrives at {found.get_attribute('outerHTML')}")


def quiet(driver):
    """Nothing on the console that is a warning or worse."""
    said = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not said, said


def points(driver, chart):
    """Of each series that is shown: its name, and how many points it has drawn."""
    return driver.execute_script(
        """const made = page.charts.get(arguments[0]);
        const found = [];
        // Not `getSeries`, which has those too that the legend hides.
        made.instance.getModel().eachSeries(s => found.push([s.name, s.getData().count()]));
        return found;""",
        chart,
    )


def drawing(driver, chart):
    """Of each series that is shown: its name, its type, its points, and the shapes with paint on them that stand for it in the chart."""
    return driver.execute_script(
        """const { instance } = page.charts.get(arguments[0]);
        const paint = (color) => Boolean(color) && color !== "none" && color !== "transparent";
        const found = [];
        instance.getModel().eachSeries((series) => {
            let marks = 0;
            instance.getViewOfSeriesModel(series).group.traverse((e) => {
                if (e.isGroup || e.ignore || e.invisible || !e.style || e.style.opacity === 0) return;
                const box = e.getBoundingRect();
                const seen = paint(e.style.fill) || (paint(e.style.stroke) && e.style.lineWidth > 0);
                if (seen && box.width + box.height > 0) marks += 1;
            });
            found.push([series.name, series.subType, series.getData().count(), marks]);
        });
        return found;""",
        chart,
    )


def is_drawn(driver, chart):
    """Whether each series that has points is drawn: a line by its curve, anything else by a shape for each point."""
    least = {"line": lambda points: 1, "custom": lambda points: max(points - 1, 1)}
    found = [(points, marks, least.get(kind, lambda points: points)) for _, kind, points, marks in drawing(driver, chart) if points]
    return bool(found) and all(marks >= need(points) for points, marks, need in found)


def can_fail(driver, chart):
    """That `is_drawn` is false of a chart in which a series is missing, or is there and draws nothing."""
    for broken in ("{ data: [] }", "{ lineStyle: { opacity: 0 }, itemStyle: { opacity: 0 }, areaStyle: undefined, renderItem: () => undefined }"):
        driver.execute_script(
            f"""const made = page.charts.get(arguments[0]);
            made.instance.setOption({{ series: made.current.series.map((s) => ({{ ...s, ...{broken} }})) }}, {{ replaceMerge: ["series"] }});""",
            chart,
        )
        assert not is_drawn(driver, chart), (chart, broken)
    driver.execute_script("page.charts.get(arguments[0]).draw()", chart)
    settled(driver)
    assert is_drawn(driver, chart), chart


def stands_alone(driver, chart):
    """The file of a chart says what it shows: title, axes, a key of what is drawn, on the paper of the page, and each series in its color."""
    text, names, axes, title, paper, colors = driver.execute_script(
        """const made = page.charts.get(arguments[0]);
        const axes = ["xAxis", "yAxis"].flatMap((axis) => made.current[axis]).filter((axis) => axis.type !== "category" || axis.name);
        const file = page.exported(made);
        const plain = (series) => {
            const instance = echarts.init(null, null, { renderer: "svg", ssr: true, width: file.width, height: file.height });
            instance.setOption({ ...file.option, series });
            const text = instance.renderToSVGString();
            instance.dispose();
            return text;
        };
        const empty = plain(file.option.series.map((s) => ({ ...s, data: [] })));
        const full = page.svg(made);
        const count = (text, color) => text.split("<").filter((e) => e.includes(`"${color}"`) && !e.includes('d=""')).length;
        const colors = [];
        made.instance.getModel().eachSeries((s) => {
            if (s.getData().count() === 0) return;
            const style = s.getData().getItemVisual(0, "style");
            const color = s.subType === "line" && !s.get("areaStyle") ? style.stroke ?? style.fill : style.fill;
            colors.push([s.name, color, count(full, color), count(empty, color)]);
        });
        const names = made.legend ? made.current.legend.data.filter((n) => !made.hidden.has(n)) : [];
        return [full, names, axes.map((a) => a.name), made.title, page.ink("paper"), colors];""",
        chart,
    )
    parsed = ElementTree.fromstring(text)
    words = ["".join(e.itertext()) for e in parsed.iter("{http://www.w3.org/2000/svg}text")]
    whole = " ".join(words)
    assert all(word in whole for word in title.split()), (chart, title, words)
    assert all(axes) and all(name in words for name in axes), (chart, axes, words)
    assert all(str(name) in words for name in names), (chart, names, words)
    first = next(e for e in parsed.iter() if e.tag.endswith("}rect"))
    assert first.get("fill") == paper, (chart, first.attrib, paper)
    assert colors and all(full > empty for _, _, full, empty in colors), (chart, colors)
    # Nothing reaches beyond the paper, and the plot is below the title and above the key.
    top, bottom, rows = driver.execute_script(
        """const file = page.exported(page.charts.get(arguments[0]));
        const instance = echarts.init(null, null, { renderer: "svg", ssr: true, width: file.width, height: file.height });
        instance.setOption(file.option);
        const plot = instance.getModel().getComponent("grid").coordinateSystem.getRect();
        const box = (name) => {
            const model = instance.getModel().getComponent(name);
            const { group } = instance.getViewOfComponentModel(model);
            const rect = group.getBoundingRect();
            return [group.y + rect.y, group.y + rect.y + rect.height];
        };
        const found = [plot.y - box("title")[1], box("legend")[0] - (plot.y + plot.height), file.option.legend.data.length];
        instance.dispose();
        return found;""",
        chart,
    )
    assert top > 0 and (rows == 0 or bottom > 0), (chart, top, bottom)
    width, height = float(parsed.get("width")), float(parsed.get("height"))
    assert width >= 640, (chart, width)
    for e in parsed.iter("{http://www.w3.org/2000/svg}text"):
        at = re.search(r"(?:translate\(|matrix\((?:[-\d.e]+[ ,]){4})([-\d.e]+)[ ,]([-\d.e]+)\)", e.get("transform") or "")
        x, y = (float(at[1]), float(at[2])) if at else (float(e.get("x") or 0), float(e.get("y") or 0))
        assert 0 <= x <= width and 0 <= y <= height, (chart, x, y, "".join(e.itertext()))
    picture = driver.execute_async_script(
        """const [chart, done] = arguments;
        const image = new Image();
        image.onload = () => {
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.width, image.height];
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const { data } = context.getImageData(0, 0, image.width, image.height);
            const seen = new Map();
            for (let at = 0; at < data.length; at += 4) {
                const key = `${data[at]},${data[at + 1]},${data[at + 2]},${data[at + 3]}`;
                seen.set(key, (seen.get(key) ?? 0) + 1);
            }
            done([image.width, image.height, [...seen].sort((a, b) => b[1] - a[1]).slice(0, 400)]);
        };
        image.src = page.png(page.charts.get(chart));""",
        chart,
    )
    # The paper takes most of it, and is there.
    pixels = dict(map(tuple, picture[2]))
    assert abs(picture[0] - 2 * width) <= 2 and abs(picture[1] - 2 * height) <= 2, (chart, picture[:2], width, height)
    rgb = ",".join(str(int(paper[at:at + 2], 16)) for at in (1, 3, 5)) + ",255"
    assert picture[2][0][0] == rgb and len(pixels) > 20, (chart, picture[2][0], rgb)


def painted(paper):
    """How often each color is painted with in a PDF."""
    counts = Counter()
    for part in re.finditer(rb"stream\r?\n(.*?)endstream", paper, re.DOTALL):
        try:
            text = zlib.decompress(part[1])
        except zlib.error:
            continue
        for color in re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) (?:rg|RG)\b", text):
            counts["#" + "".join(f"{round(float(part) * 255):02x}" for part in color)] += 1
    return counts


def on_paper(driver, width=718):
    """A page as it is printed: light, with all charts, and nothing cut off or under something else. The width is what paper leaves."""
    resize(driver, width, 1000)
    before = theme_of(driver)
    if before == "light":
        theme(driver)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    settled(driver)
    assert theme_of(driver) == "light"
    rest(driver)
    found = driver.execute_script(
        """const found = [];
        const name = (e) => `${e.tagName}.${e.className}#${e.id}`;
        const seen = (e) => e.checkVisibility();
        for (const box of [...document.querySelectorAll("main .table, main pre, main .legend, main .steps, main td")].filter(seen)) {
            if (box.scrollHeight > box.clientHeight + 2 && getComputedStyle(box).overflowY !== "visible") found.push(`${name(box)} is cut`);
            const end = Math.max(...[...box.children].map((c) => c.getBoundingClientRect().bottom), 0);
            if (end > box.getBoundingClientRect().bottom + 2) found.push(`${name(box)} is left by what it holds`);
        }
        for (const closed of document.querySelectorAll("main details:not([open])")) if (seen(closed)) found.push(`${name(closed)} is closed`);
        for (const figure of [...document.querySelectorAll("figure[id]")].filter(seen)) {
            const [canvas, box] = [figure.querySelector("canvas").getBoundingClientRect(), figure.getBoundingClientRect()];
            if (canvas.width < 100 || canvas.right > box.right + 1 || canvas.bottom > box.bottom + 1) found.push(`${name(figure)} is left by its chart`);
        }
        if (document.documentElement.scrollWidth > innerWidth) found.push(`${document.documentElement.scrollWidth} of ${innerWidth} pixels`);
        return found;""")
    assert not found, found
    used, dark = driver.execute_script(
        """const used = [];
        for (const { instance, figure } of page.charts.values()) if (!figure.hidden) instance.getModel().eachSeries((s) => {
            if (s.getData().count() > 0) used.push(s.getData().getItemVisual(0, "style"));
        });
        return [used.map((style) => style.fill ?? style.stroke).filter((c) => c.startsWith("#")), "#14181f"];""")
    options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.7, "preferCSSPageSize": True}
    paper = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", options)["data"])
    colors = painted(paper)
    assert paper.startswith(b"%PDF") and used and all(colors[color] > 0 for color in used), (used, colors)
    assert colors[dark] == 0, colors
    if os.environ.get("SHOTS"):
        name = re.sub(r"\W+", "-", driver.title)
        Path(os.environ["SHOTS"], f"paper-{name}.pdf").write_bytes(paper)
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert theme_of(driver) == "dark"
    if before == "light":
        theme(driver)
    resize(driver, 1280)
    settled(driver)


def said(driver, chart, *all_keys):
    """What a chart says to those who do not see it, after some keys."""
    place = driver.find_element(By.CSS_SELECTOR, f"#chart-{chart} .chart")
    for key in all_keys:
        place.send_keys(key)
    rest(driver)
    return driver.find_element(By.CSS_SELECTOR, f"#chart-{chart} [role=status]").get_attribute("textContent")


def fits(driver):
    """The page is no wider than its window."""
    wide, window = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window, f"{wide} of {window} pixels"


def theme_of(driver):
    return driver.execute_script("return document.documentElement.dataset.theme")


def theme(driver):
    """Switches the theme; gives the color of the paper."""
    click(driver, driver.find_element(By.ID, "theme"))
    settled(driver)
    return driver.execute_script("return getComputedStyle(document.body).backgroundColor")


def column(driver, table, title):
    """The cells of a column, as they are shown."""
    return driver.execute_script(
        """const table = document.querySelector(`#table-${arguments[0]} table`);
        const at = [...table.tHead.rows[0].cells].findIndex(c => c.textContent === arguments[1]);
        return [...table.tBodies[0].rows].map(r => r.cells[at].textContent);""",
        table,
        title,
    )


def shot(driver, name, whole=True):
    """Keeps a picture where `SHOTS` asks for it."""
    folder = os.environ.get("SHOTS")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    width = driver.execute_script("return innerWidth")
    if whole:
        resize(driver, width, min(driver.execute_script("return document.documentElement.scrollHeight"), 8000))
        rest(driver)
    driver.save_screenshot(str(Path(folder) / f"{name}.png"))
    if whole:
        resize(driver, width)
