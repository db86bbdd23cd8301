"""A report as a file: the JSON document, or one HTML page that needs nothing else."""

from __future__ import annotations

import json
import shlex
from typing import Any

__all__ = ["document", "page"]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ducklake-bridge: {{ data.source or "report" }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem } th, td { text-align: left; padding: .3rem .6rem;
border-bottom: 1px solid #ddd; vertical-align: top } pre { white-space: pre-wrap; font-size: 12px; margin: .2rem 0 } code { font-size: 13px; overflow-wrap: anywhere }
.blocked, .bad { color: #a40000; font-weight: 600 } .loss { color: #8a5a00 } .note, .ok { color: #356635 }
</style></head><body>
{% if data.plan and data.written is not defined %}<p><strong>A plan: nothing was written.</strong></p>{% endif %}
<h1>{{ data.source or "Verification" }}{% if data.target %} &rarr; {{ data.target }}{% endif %}</h1>
{% if data.plan %}<p>plan <code>{{ data.plan }}</code>, exit code {{ data.exit_code if data.exit_code is defined else "-" }}</p>{% endif %}
{% for table in data.tables or [] %}
<h2>{{ table.target }} <small class="{{ 'bad' if table.action == 'blocked' else 'ok' }}">{{ table.action }}</small></h2>
{% if table.action in ("create", "append") %}<p>{{ "registered" if data.written is defined else "to be registered" }} in
place: {{ table.register.files }} data files ({{ table.register.bytes }} bytes) in {{ table.snapshots }} snapshots, with
{{ table.deletes }} deleted rows; rewritten: {{ table.rewrite.files + table.rewrite.history_files }}.</p>
{% else %}<p>nothing is written</p>{% endif %}
{% if table.findings %}<table><tr><th>severity</th><th>code</th><th>what</th></tr>
{% for finding in table.findings %}<tr><td class="{{ finding.severity }}">{{ finding.severity }}</td>
<td><code>{{ finding.code }}</code></td><td>{{ finding.detail }}{% if finding.hint %} <em>{{ finding.hint }}</em>{% endif %}{% if finding.text %}<pre>{{ finding.text }}</pre>{% endif %}</td></tr>
{% endfor %}</table>{% endif %}
{% endfor %}
{% if data.objects %}<h2>Schemas, views and macros</h2><table><tr><th>object</th><th>action</th><th>what</th></tr>
{% for object in data.objects %}<tr><td>{{ object.kind }} {{ object.target }}</td>
<td class="{{ 'ok' if object.action in ('create', 'nothing') else 'bad' }}">{{ object.action }}</td>
<td>{% for finding in object.findings %}<p><span class="{{ finding.severity }}">{{ finding.severity }}</span>
<code>{{ finding.code }}</code> {{ finding.detail }}{% if finding.hint %} <em>{{ finding.hint }}</em>{% endif %}</p>
{% endfor %}{% if object.definition %}<pre>{{ object.definition }}</pre>{% endif %}</td></tr>
{% endfor %}</table>{% endif %}
{% if data.catalog %}<h2>Beside the tables</h2><table><tr><th>severity</th><th>code</th><th>what</th></tr>
{% for finding in data.catalog %}<tr><td class="{{ finding.severity }}">{{ finding.severity }}</td>
<td><code>{{ finding.code }}</code></td><td>{{ finding.subject }}: {{ finding.detail }}{% if finding.text %}<pre>{{ finding.text }}</pre>{% endif %}</td></tr>
{% endfor %}</table>{% endif %}
{% if data.retry %}<p>Blocked, to try again: <code>{{ data.retry | map("quoted") | join(" ") }}</code></p>{% endif %}
{% if data.checks %}<h2>Checks</h2><table>
{% for check in data.checks %}<tr><td class="{{ 'ok' if check.ok else 'bad' }}">{{ "holds" if check.ok else "WRONG" }}</td>
<td>{{ check.what }}</td><td>{{ check.fault }}</td></tr>{% endfor %}</table>{% endif %}
{% if data.next %}<h2>Next</h2>{% for line in data.next %}<p><code>{{ line }}</code></p>{% endfor %}{% endif %}
</body></html>
"""


def document(data: dict[str, Any]) -> str:
    """The report as JSON."""
    return json.dumps(data, indent=2, default=str, ensure_ascii=False)


def page(data: dict[str, Any]) -> str:
    """The report as HTML; every value is escaped."""
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    environment.filters["quoted"] = shlex.quote
    return environment.from_string(_PAGE).render(data=data)
