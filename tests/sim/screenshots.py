"""Renew the pictures of the page in docs/: python -m tests.sim.screenshots. Look at them before you commit them."""

from fencepost_lab.sim.serve import server
from tests import ROOT
from tests.sim.browser import Browser, serving, wait_score

SHOTS = {
    "desktop": (1280, 1000, "light", "v=0&t=10.5", {"corrupted": "1"}),
    "dark": (1280, 1000, "dark", "v=1&t=9", {"refused": "1"}),
    "phone": (360, 740, "light", "v=1&t=12", {"refused": "1"}),
}

if __name__ == "__main__":
    with serving(server(0)) as page, Browser() as browser:
        for name, (width, height, scheme, where, outcome) in SHOTS.items():
            browser.looks(width, height, prefers_color_scheme=scheme)
            browser.open(f"{page}#story=gc-pause&{where}")
            wait_score(browser, **outcome)
            if name == "phone":
                browser.run("document.querySelector('#score').scrollIntoView()")
            path = ROOT / "docs" / f"sim-{name}.png"
            path.write_bytes(browser.picture())
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
