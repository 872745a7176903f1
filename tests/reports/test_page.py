"""The page: escaping, policy, template."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from gear_data.reports import page

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028 \u2029 & ' \" \x00 \ud800"


def test_data_cannot_leave_its_element() -> None:
    text = page.json_in_html({"task": HOSTILE})
    assert not re.search(r"[<>&\u2028\u2029]", text)
    assert text.isascii()
    assert json.loads(text) == {"task": HOSTILE}


def test_a_page_is_one_text_without_addresses() -> None:
    text = page.render("a <b> & {{data}}", {"x": HOSTILE + "{{script}}"})
    assert "<title>a &lt;b&gt; &amp; {{data}}</title>" in text
    assert text.count("<script") == 3
    assert text.count("</script>") == 3
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data) == {"x": HOSTILE + "{{script}}"}
    assert not re.search(r'(?:src|href)="(?!#|data:,)', text.split('<script type="module">')[0])


def test_the_policy_allows_only_the_scripts_of_the_page() -> None:
    text = page.render("t", {})
    scripts = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert len(scripts) == 2
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none';")
    script_sources = policy[1].split("script-src ")[1].split(";")[0]
    assert "unsafe" not in script_sources and "http" not in policy[1]
