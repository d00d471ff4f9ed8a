#pragma once

// The style and the script of a report as an HTML page.

#include <string_view>

namespace tidemark::detail {

// Colours of the categories after Okabe and Ito, which people of all kinds of sight tell apart.
inline constexpr std::string_view kPageStyle = R"css(
:root{color-scheme:light dark;--ground:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#5b6470;--line:#d9dde3;--peak:#b00020;
--c0:#0072b2;--c1:#56b4e9;--c2:#009e73;--c3:#cc79a7;--c4:#f0e442;--c5:#e69f00;--c6:#d55e00;--c7:#882255;--c8:#9a9a9a;
--p0:#cfd8e6;--p1:#a9b8d0;--p2:#f3cf8e;--p3:#b5d8c4}
@media(prefers-color-scheme:dark){:root{--ground:#15181c;--panel:#1e2228;--ink:#e7eaee;--soft:#9aa4b1;--line:#353b44;--peak:#ff7a8a;
--c7:#b0427c;--p0:#3a4657;--p1:#55657f;--p2:#7d6129;--p3:#3a6450}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:14px/1.45 system-ui,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1160px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:22px;margin:0 0 2px}h2{font-size:16px;margin:34px 0 8px}
p{margin:4px 0}.soft{color:var(--soft)}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0 0}
.card{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px;flex:1 1 150px}
.card b{display:block;font-size:21px;font-weight:600}.card:first-child{flex:2 1 300px}.card:first-child b{color:var(--peak)}
.card span{color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}
figure{margin:0;position:relative}svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11.5px}svg .tick{dominant-baseline:middle}svg .phase{fill:var(--ink);font-size:11px}
.grid{stroke:var(--line)}.axis{stroke:var(--soft);fill:none}
path.peak{stroke:var(--peak);stroke-dasharray:4 3;fill:none}circle.peak{fill:var(--peak)}text.peak{fill:var(--peak);font-size:12.5px;font-weight:600}
#cursor line{stroke:var(--ink);stroke-opacity:.6}
svg path[class^=c]{stroke:var(--ground);stroke-width:.6;stroke-linejoin:round}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}.c2{fill:var(--c2);background:var(--c2)}
.c3{fill:var(--c3);background:var(--c3)}.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);background:var(--c6)}.c7{fill:var(--c7);background:var(--c7)}.c8{fill:var(--c8);background:var(--c8)}
.p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}.p3{fill:var(--p3)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px;vertical-align:-1px}
#readout{position:absolute;pointer-events:none;background:var(--ground);border:1px solid var(--line);border-radius:6px;padding:7px 10px;font-size:12.5px;
box-shadow:0 3px 12px #0003;max-width:330px;display:none;z-index:1}
#readout div{display:flex;justify-content:space-between;gap:18px}#readout .where{display:block;color:var(--soft);overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:4px 8px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:12.5px;vertical-align:bottom}
th:first-child,td:first-child,.text{text-align:left}td.text{white-space:normal;overflow-wrap:anywhere}
tr.total td{font-weight:600}
table.sortable th{cursor:pointer}th[aria-sort=descending]::after{content:" \2193"}th[aria-sort=ascending]::after{content:" \2191"}
.bar{display:flex;height:12px;min-width:1px}.bar i{height:100%}td.wide{width:24%;min-width:120px}
.life{position:relative;height:8px;background:var(--panel);border-radius:4px}.life i{position:absolute;height:100%;border-radius:4px;min-width:2px}
ol,ul{padding-left:22px;margin:6px 0}li{margin:7px 0}
)css";

inline constexpr std::string_view kPageScript = R"js(
(() => {
  'use strict';
  const data = JSON.parse(document.getElementById('data').textContent);
  const chart = document.getElementById('chart');
  const cursor = document.getElementById('cursor');
  const readout = document.getElementById('readout');
  const bytes = (count) => {
    let unit = -1;
    while (count >= 1024 && unit < 5) { count /= 1024; ++unit; }
    return unit < 0 ? count + ' bytes' : count.toFixed(1) + ' ' + 'KMGTPE'[unit] + 'iB';
  };
  const line = (left, right, colour) => {
    const div = document.createElement('div');
    const name = document.createElement('span');
    if (colour) {
      const swatch = document.createElement('i');
      swatch.className = 'swatch ' + colour;
      name.append(swatch);
    }
    name.append(left);
    const value = document.createElement('span');
    value.textContent = right;
    div.append(name, value);
    return div;
  };
  const row_at = (time) => {
    let low = 0, high = data.rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (data.rows[middle][0] <= time) low = middle; else high = middle - 1;
    }
    return data.rows[low];
  };
  const show = (event) => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * data.width;
    if (x < data.left || x > data.right) { hide(); return; }
    const row = row_at((x - data.left) / (data.right - data.left) * data.end_ns);
    cursor.setAttribute('visibility', 'visible');
    cursor.setAttribute('transform', 'translate(' + x + ' 0)');
    const where = document.createElement('div');
    where.className = 'where';
    where.textContent = (row[0] / 1e6).toFixed(3) + ' ms, ' + data.phases[row[2]] +
        (row[3] < 0 ? '' : ': ' + data.texts[row[3]]);
    const parts = [where, line('total', bytes(row[1]))];
    for (let i = data.categories.length - 1; i >= 0; --i) {
      if (row[4 + i] > 0) {
        parts.push(line(data.categories[i][0], bytes(row[4 + i]), data.categories[i][1]));
      }
    }
    readout.replaceChildren(...parts);
    readout.style.display = 'block';
    const left = event.clientX - box.left;
    const width = readout.offsetWidth;
    readout.style.left = (left + width + 24 > box.width ? left - width - 14 : left + 14) + 'px';
    readout.style.top = '34px';
  };
  const hide = () => {
    cursor.setAttribute('visibility', 'hidden');
    readout.style.display = 'none';
  };
  chart.addEventListener('pointermove', show);
  chart.addEventListener('pointerleave', hide);

  for (const table of document.querySelectorAll('table.sortable')) {
    const body = table.tBodies[0];
    const given = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.addEventListener('click', () => {
      const sorted = head.getAttribute('aria-sort');
      heads.forEach((other) => other.removeAttribute('aria-sort'));
      const value = (row) => Number(row.cells[column].dataset.value);
      const rows = [...given];
      if (column > 0) {
        const up = sorted === 'descending';
        head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
        rows.sort((a, b) => up ? value(a) - value(b) : value(b) - value(a));
      }
      body.replaceChildren(...rows);
    }));
  }
})();
)js";

}  // namespace tidemark::detail
