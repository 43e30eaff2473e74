"""A headless Chromium over WebDriver, and what every page of Meshwright must hold to."""

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

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
    """Waits until all charts are drawn as they are to be."""
    driver.execute_async_script("page.settled().then(arguments[0])")


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


def is_drawn(driver, chart):
    """Whether a chart has more than paper: its drawing differs from that of its axes alone."""
    marks = driver.execute_script(
        """const text = page.svg(page.charts.get(arguments[0]));
        return (text.match(/<(path|circle|rect|polyline|polygon)/g) || []).length;""",
        chart,
    )
    return marks > 3


def fits(driver):
    """The page is no wider than its window."""
    wide, window = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window, f"{wide} of {window} pixels"


def theme(driver):
    """Switches the theme; gives the color of the paper."""
    driver.find_element(By.ID, "theme").click()
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
        time.sleep(0.3)
    driver.save_screenshot(str(Path(folder) / f"{name}.png"))
    if whole:
        resize(driver, width)
