/* The interactive parts of a report. State is in the URL: `#section?spec=...&status=...&a.dtype=float16`.
   d3 and Observable Plot come before this script. */
"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const C = D.cases, N = C.id.length;
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const BAD = new Set(["failed", "error", "crashed", "timeout"].map((s) => D.statuses.indexOf(s)));
  const FILTERED = new Set(["matrix", "cases", "errors", "coverage", "time"]);
  const PAGE = 100, MOST = 48;
  const bad = (i) => BAD.has(C.status[i]);
  const el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== undefined));
    return node;
  };
  const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  const short = (text, most = 26) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const num = (x) => (x === null || x === undefined ? "–" : x >= 1000 ? x.toLocaleString("en", { maximumFractionDigits: 0 }) : x >= 100 ? x.toFixed(0) : String(+x.toPrecision(3)));
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // State in the URL ---------------------------------------------------------------------------
  let state = { section: "overview", params: new URLSearchParams() };
  const read = () => {
    const [section, query = ""] = decodeURI(location.hash.slice(1)).split("?");
    const known = document.getElementById(section);
    state = { section: known && known.matches("section") ? section : "overview", params: new URLSearchParams(query) };
  };
  const address = (section, params) => {
    const query = params.toString();
    return `#${section}${query ? `?${query}` : ""}`;
  };
  const changed = (changes, section = state.section) => {
    const params = new URLSearchParams(state.params);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") params.delete(name);
      else params.set(name, value);
    }
    return address(section, params);
  };
  const go = (changes, section) => { location.hash = changed(changes, section); };
  const filters = () => [...state.params].filter(([name]) => name === "q" || name === "spec" || name === "status" || name === "fault" || name.startsWith("a."));

  // Filtering ----------------------------------------------------------------------------------
  const selected = () => {
    const tests = [];
    for (const [name, value] of filters()) {
      if (name === "q") {
        const words = value.toLowerCase().split(/\s+/).filter(Boolean);
        tests.push((i) => { const text = `${D.specs[C.spec[i]].name} ${C.id[i]} ${C.note[i] || ""}`.toLowerCase(); return words.every((word) => text.includes(word)); });
      } else if (name === "spec") {
        const wanted = new Set(D.specs.flatMap((spec, at) => (spec.name === value || spec.path === value ? [at] : [])));
        tests.push((i) => wanted.has(C.spec[i]));
      } else if (name === "status") {
        const at = D.statuses.indexOf(value);
        tests.push(value === "failing" ? bad : (i) => C.status[i] === at);
      } else if (name === "fault") tests.push((i) => C.fault[i] === +value);
      else {
        const axis = name.slice(2), column = C.values[axis];
        const at = (D.axes[axis] || []).indexOf(value);
        tests.push((i) => column !== undefined && column[i] === at && at >= 0);
      }
    }
    const found = [];
    for (let i = 0; i < N; i++) if (tests.every((test) => test(i))) found.push(i);
    return found;
  };

  const options = (select, values, chosen, words = (v) => v) => {
    for (const value of values) select.append(el("option", { value, selected: value === chosen }, words(value)));
    return select;
  };
  const drawFilters = (rows) => {
    const bar = $("#filters");
    bar.classList.toggle("on", FILTERED.has(state.section));
    const focused = document.activeElement && document.activeElement.id;
    const caret = focused === "q" ? document.activeElement.selectionStart : null;
    const params = state.params;
    const search = el("input", { id: "q", type: "search", placeholder: "Search cases  ( / )", "aria-label": "Search cases", value: params.get("q") || "" });
    let timer;
    search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => go({ q: search.value, page: null }), 200); });
    const spec = options(el("select", { id: "f-spec", "aria-label": "Spec", onchange: (e) => go({ spec: e.target.value, page: null }) }, el("option", { value: "" }, "all specs")), [...new Set(D.specs.map((s) => s.name))], params.get("spec"));
    const present = D.statuses.filter((_, at) => C.status.includes(at));
    const status = options(el("select", { id: "f-status", "aria-label": "Status", onchange: (e) => go({ status: e.target.value, page: null }) }, el("option", { value: "" }, "all outcomes")), ["failing", ...present], params.get("status"), (v) => (v === "failing" ? "any failure" : v));
    const axis = el("select", { id: "f-axis", "aria-label": "Add a filter on an axis", onchange: (e) => { const [name, value] = JSON.parse(e.target.value); go({ [`a.${name}`]: value, page: null }); } }, el("option", { value: "" }, "+ axis"));
    for (const [name, labels] of Object.entries(D.axes)) {
      const group = el("optgroup", { label: name });
      for (const text of labels.slice(0, 200)) group.append(el("option", { value: JSON.stringify([name, text]) }, `${name} = ${text}`));
      axis.append(group);
    }
    const chips = filters().filter(([name]) => name.startsWith("a.") || name === "fault").map(([name, value]) => el("button", { type: "button", class: "chip", "aria-label": `Remove the filter ${name.replace("a.", "")} = ${value}`, onclick: () => go({ [name]: null, page: null }) }, `${name.replace("a.", "")} = ${short(value)}`, " ✕"));
    const clear = filters().length ? el("button", { type: "button", id: "clear", onclick: () => clearFilters() }, "Clear") : undefined;
    const words = rows.length === N ? plural(N, "case") : `${rows.length.toLocaleString("en")} of ${plural(N, "case")}`;
    bar.replaceChildren(search, spec, status, axis, ...chips, ...(clear ? [clear] : []), el("span", { class: "shown" }, words));
    if (focused && document.getElementById(focused)) {
      document.getElementById(focused).focus();
      if (caret !== null) $("#q").setSelectionRange(caret, caret);
    }
    if (FILTERED.has(state.section)) $("#live").textContent = words;
  };
  const clearFilters = () => go(Object.fromEntries(filters().map(([name]) => [name, null]).concat([["page", null]])));

  // Charts -------------------------------------------------------------------------------------
  const wide = (view) => Math.max(320, Math.min(1500, view.clientWidth || 1160) - 28);
  const chart = (title, plot, note) => el("div", { class: "chart" }, el("h3", {}, title), ...(plot ? [plot] : []), ...(note ? [el("p", {}, note)] : []));
  const empty = (words) => el("p", { class: "empty" }, words);
  const base = (options) => ({ style: { background: "transparent", color: color("fg"), fontSize: "12px", fontFamily: "inherit", overflow: "visible" }, ...options });

  const entropy = (k, n) => (k === 0 || k === n ? 0 : -(k / n) * Math.log2(k / n) - (1 - k / n) * Math.log2(1 - k / n));
  const axesOf = (rows) => Object.keys(D.axes).filter((axis) => { const seen = new Set(); for (const i of rows) { const v = C.values[axis][i]; if (v >= 0) seen.add(v); if (seen.size > 1) return true; } return false; });
  const telling = (rows, axes) => {
    const total = rows.length;
    const gain = (axis) => {
      const n = new Map(), k = new Map();
      let all = 0, fails = 0, rest = 0;
      for (const i of rows) {
        const v = C.values[axis][i];
        if (v < 0) continue;
        all++; n.set(v, (n.get(v) || 0) + 1);
        if (bad(i)) { fails++; k.set(v, (k.get(v) || 0) + 1); }
      }
      for (const [v, count] of n) rest += entropy(k.get(v) || 0, count) * count;
      return [(entropy(fails, all) * all - rest) / total, n.size, all];
    };
    const gains = new Map(axes.map((axis) => [axis, gain(axis)]));
    // Axes that nearly all cases have and that fit on a screen, if there are two.
    const some = (list, wanted) => { const kept = list.filter(wanted); return kept.length > 1 ? kept : list; };
    const common = some(axes, (axis) => gains.get(axis)[2] >= 0.9 * total);
    return some(common, (axis) => gains.get(axis)[1] <= 24).sort((a, b) => gains.get(b)[0] - gains.get(a)[0] || gains.get(b)[1] - gains.get(a)[1]);
  };

  const MEASURES = { outcome: "Outcome", ratio: "Error ratio", time: "Time" };
  const matrix = (view, rows) => {
    const params = state.params;
    const counts = d3.rollup(rows, (list) => [list.filter(bad).length, list.length], (i) => C.spec[i]);
    const specs = [...counts.keys()].sort((a, b) => counts.get(b)[0] - counts.get(a)[0] || counts.get(b)[1] - counts.get(a)[1]);
    if (!specs.length) return view.replaceChildren(empty("No case matches the filters."));
    const named = D.specs.findIndex((spec) => spec.path === params.get("of"));
    const at = specs.includes(named) ? named : specs[0];
    const mine = rows.filter((i) => C.spec[i] === at);
    const axes = axesOf(mine);
    const measure = params.get("m") in MEASURES ? params.get("m") : "outcome";
    const specSelect = options(el("select", { "aria-label": "Spec of the matrix", id: "m-spec", onchange: (e) => go({ of: e.target.value, x: null, y: null }) }), specs.map((s) => D.specs[s].path), D.specs[at].path, (path) => { const s = D.specs.findIndex((each) => each.path === path); const [k, n] = counts.get(s); return `${D.specs[s].name} (${k ? `${k} failed of ` : ""}${n})`; });
    if (axes.length < 2) return view.replaceChildren(el("div", { class: "controls" }, specSelect), empty("These cases differ in fewer than two axes."));
    const best = telling(mine, [...axes]);
    let y = axes.includes(params.get("y")) ? params.get("y") : best[0];
    let x = axes.includes(params.get("x")) && params.get("x") !== y ? params.get("x") : best.find((axis) => axis !== y);
    if (!params.get("x") && !params.get("y") && D.axes[x].length > D.axes[y].length) [x, y] = [y, x];
    const pick = (id, words, chosen, other) => el("label", {}, words, options(el("select", { id, onchange: (e) => go({ [id]: e.target.value, [other]: e.target.value === (other === "x" ? x : y) ? chosen : other === "x" ? x : y }) }), axes, chosen));
    const buttons = Object.entries(MEASURES).map(([name, words]) => el("button", { type: "button", "aria-pressed": String(name === measure), onclick: () => go({ m: name }) }, words));
    const controls = el("div", { class: "controls" }, specSelect, pick("y", "rows", y, "x"), pick("x", "columns", x, "y"), el("button", { type: "button", title: "Swap rows and columns", "aria-label": "Swap rows and columns", onclick: () => go({ x: y, y: x }) }, "⇄"), el("span", { class: "group", role: "group", "aria-label": "Measure" }, ...buttons));
    const cells = d3.rollup(mine.filter((i) => C.values[x][i] >= 0 && C.values[y][i] >= 0), (list) => list, (i) => C.values[y][i], (i) => C.values[x][i]);
    const kept = (axis) => { const n = d3.rollup(mine, (v) => v.length, (i) => C.values[axis][i]); n.delete(-1); const all = [...n.keys()].sort((a, b) => a - b); return all.length <= MOST ? [all, 0] : [[...n].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([v]) => v).sort((a, b) => a - b), all.length - MOST]; };
    const [xs, xMore] = kept(x), [ys, yMore] = kept(y);
    const data = [];
    for (const row of ys) for (const column of xs) {
      const list = cells.get(row) && cells.get(row).get(column);
      if (!list) continue;
      const k = list.filter(bad).length;
      const ratios = list.map((i) => C.ratio[i]).filter((r) => r !== null && r !== undefined);
      data.push({ x: D.axes[x][column], y: D.axes[y][row], n: list.length, k, ratio: ratios.length ? d3.max(ratios) : null, time: d3.mean(list, (i) => C.seconds[i]) });
    }
    const slow = d3.max(data, (d) => d.time) || 1;
    const softBad = d3.interpolateRgb(color("bad-soft"), color("bad")), warm = d3.interpolateCividis;
    const fill = (d) => measure === "outcome" ? (d.k ? softBad(0.25 + 0.75 * d.k / d.n) : color("good-soft")) : measure === "ratio" ? (d.ratio === null ? color("hover") : d.ratio > 1 ? color("bad") : warm(d.ratio)) : warm(d.time / slow);
    const text = (d) => measure === "outcome" ? (!d.k ? `${d.n}` : cell >= 56 ? `✗ ${d.k}/${d.n}` : d.k === d.n ? `✗ ${d.k}` : `${d.k}/${d.n}`) : measure === "ratio" ? `${d.ratio > 1 ? "✗ " : ""}${num(d.ratio)}` : num(d.time);
    const ink = (d) => (d3.lab(fill(d)).l > 58 ? "#111" : "#fff");
    const longest = (labels) => d3.max(labels, (label) => Math.min(26, label.length)) || 1;
    const xLabels = xs.map((v) => D.axes[x][v]), yLabels = ys.map((v) => D.axes[y][v]);
    const left = 30 + 7.2 * longest(yLabels);
    const cell = Math.max(34, Math.min(110, (wide(view) - left - 10) / xs.length));
    const slanted = 7.2 * longest(xLabels) > cell - 6;
    const words = (d) => `${y} = ${d.y}, ${x} = ${d.x}: ${plural(d.n, "case")}, ${d.k} failed; largest error ratio ${num(d.ratio)}; ${num(d.time)} s each`;
    const top = (slanted ? 14 + 4.6 * longest(xLabels) : 26) + 16;
    const plot = Plot.plot(base({
      marginLeft: left, marginTop: top, marginRight: slanted ? 70 : 12, marginBottom: 8,
      width: left + cell * xs.length + (slanted ? 70 : 12), height: top + 8 + Math.max(30, Math.min(40, cell)) * ys.length,
      x: { domain: xLabels, label: null, axis: null, padding: 0.04 }, y: { domain: yLabels, label: null, axis: null, padding: 0.06 },
      marks: [
        Plot.axisX({ anchor: "top", tickRotate: slanted ? -35 : 0, textAnchor: slanted ? "start" : "middle", tickSize: 0, tickFormat: (v) => short(v), label: null }),
        Plot.axisY({ anchor: "left", tickSize: 0, tickFormat: (v) => short(v), label: null }),
        Plot.cell(data, { x: "x", y: "y", fill, rx: 3, title: words, ariaLabel: words, href: (d) => changed({ spec: D.specs[at].name, [`a.${x}`]: d.x, [`a.${y}`]: d.y, page: null }, "cases") }),
        Plot.text(data, { x: "x", y: "y", text, fill: ink, fontVariant: "tabular-nums", fontWeight: (d) => (d.k ? 600 : 400), pointerEvents: "none" }),
      ],
    }));
    const legend = { outcome: "A number alone: cases, none failed. ✗ k/n: k of n failed.", ratio: "The largest error ratio of a cell; above 1 its case fails.", time: "The mean seconds of a case." }[measure];
    const more = [yMore && `${yMore} more values of ${y}`, xMore && `${xMore} more values of ${x}`].filter(Boolean).join(" and ");
    view.replaceChildren(controls, chart(`${D.specs[at].name}: ${MEASURES[measure].toLowerCase()}, ${y} by ${x}`, plot, `${legend} An empty place has no case. Open a cell for its cases.${more ? ` Not shown: ${more}.` : ""}`));
  };

  const COLUMNS = [["status", "status"], ["spec", "spec"], ["id", "case"], ["fault", "fault"], ["ratio", "error ratio", "n"], ["size", "longest", "n"], ["seconds", "seconds", "n"]];
  const key = { status: (i) => (bad(i) ? 0 : 1) * 100 + C.status[i], spec: (i) => D.specs[C.spec[i]].name, id: (i) => C.id[i], fault: (i) => C.fault[i] || Infinity, ratio: (i) => C.ratio[i] ?? -1, size: (i) => C.size[i], seconds: (i) => C.seconds[i] };
  const cases = (view, rows) => {
    const sort = state.params.get("sort") in key ? state.params.get("sort") : "";
    const down = state.params.get("down") === "1";
    const ordered = sort ? [...rows].sort((a, b) => (down ? -1 : 1) * d3.ascending(key[sort](a), key[sort](b)) || a - b) : rows;
    const pages = Math.max(1, Math.ceil(ordered.length / PAGE));
    const page = Math.min(pages, Math.max(1, +state.params.get("page") || 1));
    const shown = ordered.slice((page - 1) * PAGE, page * PAGE);
    const head = el("tr", {}, ...COLUMNS.map(([name, words, kind]) => el("th", { class: kind, "aria-sort": sort === name ? (down ? "descending" : "ascending") : "none" }, el("button", { type: "button", class: "sort", id: `sort-${name}`, onclick: () => go({ sort: name, down: sort === name ? (down ? null : "1") : kind === "n" ? "1" : null, page: null }) }, words))));
    const body = shown.map((i) => {
      const status = D.statuses[C.status[i]], note = C.note[i];
      const fault = C.fault[i] && document.getElementById(`fault-${C.fault[i]}`) ? el("a", { href: `#fault-${C.fault[i]}` }, String(C.fault[i])) : "";
      return el("tr", {}, el("td", {}, el("span", { class: `status s-${status}` }, status)), el("td", {}, D.specs[C.spec[i]].name), el("td", { class: "id" }, C.id[i], ...(note ? [el("div", { class: "many" }, note)] : [])), el("td", {}, fault), el("td", { class: `n${C.ratio[i] > 1 ? " bad" : ""}` }, num(C.ratio[i])), el("td", { class: "n" }, num(C.size[i])), el("td", { class: "n" }, C.seconds[i].toFixed(2)));
    });
    const pager = el("div", { class: "pager" }, el("button", { type: "button", disabled: page <= 1, onclick: () => go({ page: page - 1 }) }, "← previous"), `page ${page} of ${pages}`, el("button", { type: "button", id: "next-page", disabled: page >= pages, onclick: () => go({ page: page + 1 }) }, "next →"));
    view.replaceChildren(rows.length ? el("div", { class: "scroll" }, el("table", { id: "case-table" }, el("thead", {}, head), el("tbody", {}, ...body))) : empty("No case matches the filters."), ...(pages > 1 ? [pager] : []));
  };

  const errors = (view, rows) => {
    const judged = rows.filter((i) => C.ratio[i] > 0);
    if (!judged.length) return view.replaceChildren(empty("No case of the selection has an error ratio."));
    const exact = rows.filter((i) => C.ratio[i] === 0).length;
    const low = Math.max(1e-6, d3.min(judged, (i) => C.ratio[i])), high = d3.max(judged, (i) => C.ratio[i]);
    const edges = d3.range(Math.floor(4 * Math.log10(low)), Math.ceil(4 * Math.log10(Math.max(high, 1))) + 1).map((e) => 10 ** (e / 4));
    const dtype = C.values.dtype, name = (i) => (dtype && dtype[i] >= 0 ? D.axes.dtype[dtype[i]] : "all");
    const kinds = [...new Set(judged.map(name))].sort();
    const bins = kinds.flatMap((kind) => d3.bin().value((i) => C.ratio[i]).domain([edges[0], edges.at(-1)]).thresholds(edges)(judged.filter((i) => name(i) === kind)).filter((b) => b.x1 > b.x0).map((b) => ({ kind, x1: b.x0, x2: b.x1, n: b.length })));
    const x = { type: "log", domain: [edges[0], Math.max(edges.at(-1), 1.8)], label: "error / error bound →", labelAnchor: "center", grid: true, ticks: d3.range(Math.ceil(Math.log10(edges[0]) - 1e-9), Math.floor(Math.log10(edges.at(-1)) + 1e-9) + 1).map((e) => 10 ** e), tickFormat: (v) => (v >= 1e4 || v < 1e-3 ? `1e${Math.round(Math.log10(v))}` : String(+v.toPrecision(2))) };
    const bound = (extra) => Plot.ruleX([1], { stroke: color("bad"), strokeDasharray: "4 3", strokeWidth: 1.5, ...extra });
    const histogram = Plot.plot(base({ width: wide(view), height: 74 + 105 * kinds.length, marginLeft: 52, marginRight: 76, marginBottom: 40, x, y: { label: "cases", ticks: 4, nice: true }, fy: { label: null, domain: kinds }, marks: [Plot.rectY(bins, { fy: "kind", x1: "x1", x2: "x2", y: "n", insetLeft: 0.5, insetRight: 0.5, fill: (d) => (d.x1 >= 0.999 ? color("bad") : color("good")), title: (d) => `${d.kind}: ${plural(d.n, "case")} from ${num(d.x1)} to ${num(d.x2)}` }), bound(), Plot.ruleY([0])] }));
    const bucket = (size) => (size < 2 ? size : 1 << (32 - Math.clz32(size - 1)));
    const groups = d3.rollups(judged, (list) => { const r = list.map((i) => C.ratio[i]).sort(d3.ascending); const q = (p) => d3.quantileSorted(r, p); return { n: r.length, p05: q(0.05), p25: q(0.25), p50: q(0.5), p75: q(0.75), p95: q(0.95), max: q(1) }; }, (i) => bucket(C.size[i])).sort((a, b) => a[0] - b[0]).map(([size, stats]) => ({ size: size < 2 ? String(size) : `${size / 2 + 1}–${size}`, ...stats }));
    const say = (d) => `longest ${d.size}: ${plural(d.n, "case")}, median ${num(d.p50)}, 95 % below ${num(d.p95)}, largest ${num(d.max)}`;
    const boxes = Plot.plot(base({ width: wide(view), height: 300, marginLeft: 62, marginTop: 28, marginBottom: 44, x: { domain: groups.map((d) => d.size), label: "longest length of a case →", tickSize: 0, tickRotate: groups.length > 12 && wide(view) < 700 ? -40 : 0 }, y: { ...x, label: "↑ error / error bound", labelAnchor: "top" }, marks: [Plot.ruleX(groups, { x: "size", y1: "p05", y2: "p95", stroke: color("soft") }), Plot.barY(groups, { x: "size", y1: "p25", y2: "p75", fill: color("good"), fillOpacity: 0.55, insetLeft: 6, insetRight: 6, title: say }), Plot.tickY(groups, { x: "size", y: "p50", stroke: color("fg"), strokeWidth: 2, insetLeft: 6, insetRight: 6 }), Plot.dot(groups, { x: "size", y: "max", symbol: "triangle", r: 4, fill: (d) => (d.max > 1 ? color("bad") : color("soft")), title: say }), Plot.ruleY([1], { stroke: color("bad"), strokeDasharray: "4 3", strokeWidth: 1.5 })] }));
    view.replaceChildren(chart("By dtype", histogram, `The dashed line is the error bound.${exact ? ` ${plural(exact, "case")} without any error are not drawn.` : ""}`), chart("By length", boxes, "Boxes are quartiles, lines 5 % to 95 %, triangles the largest."));
  };

  const coverage = (view, rows) => {
    const counts = d3.rollup(rows, (list) => list.length, (i) => C.spec[i]);
    const specs = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
    const named = D.specs.findIndex((spec) => spec.path === state.params.get("of"));
    const at = specs.includes(named) ? named : specs[0];
    const mine = rows.filter((i) => C.spec[i] === at), axes = axesOf(mine);
    if (axes.length < 2) return view.replaceChildren(empty("No spec of the selection has two axes with several values."));
    const select = options(el("select", { "aria-label": "Spec of the pairs", onchange: (e) => go({ of: e.target.value, x: null, y: null }) }), specs.map((s) => D.specs[s].path), D.specs[at].path, (path) => D.specs.find((s) => s.path === path).name);
    const seen = Object.fromEntries(axes.map((axis) => [axis, new Set(mine.map((i) => C.values[axis][i]).filter((v) => v >= 0)).size]));
    const data = [];
    for (const [a, one] of axes.entries()) for (const other of axes.slice(a + 1)) {
      const found = new Set();
      for (const i of mine) if (C.values[one][i] >= 0 && C.values[other][i] >= 0) found.add(C.values[one][i] * 1e6 + C.values[other][i]);
      data.push({ one, other, found: found.size, all: seen[one] * seen[other] });
    }
    const fill = (d) => d3.interpolateCividis(0.15 + 0.85 * (d.found / d.all));
    const size = Math.max(52, Math.min(92, (wide(view) - 150) / axes.length));
    const left = 20 + 7.4 * d3.max(axes, (axis) => axis.length), top = 22 + 4.4 * d3.max(axes, (axis) => axis.length);
    const words = (d) => `${d.found} of ${d.all} pairs of ${d.one} and ${d.other} occur`;
    const plot = Plot.plot(base({ width: left + size * (axes.length - 1) + 70, height: top + 8 + 34 * (axes.length - 1), marginLeft: left, marginTop: top, marginRight: 70, marginBottom: 8, x: { domain: axes.slice(1), axis: null }, y: { domain: axes.slice(0, -1), axis: null }, marks: [Plot.axisX({ anchor: "top", tickRotate: -35, textAnchor: "start", tickSize: 0, label: null }), Plot.axisY({ tickSize: 0, label: null }), Plot.cell(data, { x: "other", y: "one", fill, inset: 1, rx: 3, title: words, ariaLabel: words, href: (d) => changed({ of: D.specs[at].path, x: d.other, y: d.one }, "matrix") }), Plot.text(data, { x: "other", y: "one", text: (d) => `${d.found}/${d.all}`, fill: (d) => (d3.lab(fill(d)).l > 58 ? "#111" : "#fff"), pointerEvents: "none" })] }));
    const found = d3.sum(data, (d) => d.found), all = d3.sum(data, (d) => d.all);
    view.replaceChildren(el("div", { class: "controls" }, select), chart(`${D.specs[at].name}: pairs of values that occur together`, plot, `${found.toLocaleString("en")} of ${all.toLocaleString("en")} pairs. Constraints of the spec may exclude the others. Open a cell for its matrix.`));
  };

  const time = (view, rows) => {
    if (!rows.length) return view.replaceChildren(empty("No case matches the filters."));
    const groups = d3.rollups(rows, (list) => ({ seconds: d3.sum(list, (i) => C.seconds[i]), n: list.length }), (i) => D.specs[C.spec[i]].name).map(([name, each]) => ({ name, ...each })).sort((a, b) => b.seconds - a.seconds).slice(0, 30);
    const left = 24 + 7 * d3.max(groups, (d) => Math.min(26, d.name.length));
    const bars = Plot.plot(base({ width: wide(view), height: 64 + 24 * groups.length, marginLeft: left, marginRight: 130, marginBottom: 40, x: { label: "seconds →", labelAnchor: "center", grid: true, ticks: 8 }, y: { domain: groups.map((d) => d.name), label: null, tickFormat: (v) => short(v), tickSize: 0 }, marks: [Plot.barX(groups, { x: "seconds", y: "name", fill: color("good"), insetTop: 3, insetBottom: 3, title: (d) => `${d.name}: ${num(d.seconds)} s in ${plural(d.n, "case")}`, ariaLabel: (d) => d.name, href: (d) => changed({ spec: d.name, sort: "seconds", down: "1", page: null }, "cases") }), Plot.text(groups, { x: "seconds", y: "name", text: (d) => `${num(d.seconds)} s, ${plural(d.n, "case")}`, dx: 6, textAnchor: "start", fill: color("soft") })] }));
    view.replaceChildren(chart("Seconds by spec", bars));
  };

  const search = (view) => {
    const charts = D.runs.flatMap((run, number) => {
      if (!run.search) return [];
      const mine = d3.range(N).filter((i) => C.run[i] === number);
      const seen = new Set(), steps = [{ at: 0, faults: 0 }], news = [];
      mine.forEach((i, at) => { if (C.fault[i] && !seen.has(C.fault[i])) { seen.add(C.fault[i]); news.push({ at: at + 1, faults: seen.size, i }); steps.push({ at: at + 1, faults: seen.size }); } });
      steps.push({ at: mine.length, faults: seen.size });
      const x = { label: "example →", labelAnchor: "center", domain: [0, mine.length] };
      const found = Plot.plot(base({ width: wide(view), height: 190, marginLeft: 52, marginTop: 28, marginBottom: 40, x, y: { label: "↑ faults", domain: [0, Math.max(1, seen.size)], ticks: Math.min(5, Math.max(1, seen.size)), tickFormat: "d", grid: true }, marks: [Plot.lineY(steps, { x: "at", y: "faults", curve: "step-after", stroke: color("bad"), strokeWidth: 2 }), Plot.dot(news, { x: "at", y: "faults", r: 5, fill: color("bad"), href: (d) => `#fault-${C.fault[d.i]}`, ariaLabel: (d) => `fault ${C.fault[d.i]} in example ${d.at}`, title: (d) => `fault ${C.fault[d.i]}, example ${d.at}: ${C.note[d.i] || ""}` }), Plot.ruleY([0])] }));
      const step = Math.ceil(mine.length / 3000);
      const dots = mine.map((i, at) => ({ i, at: at + 1, size: Math.max(1, C.size[i]), fails: bad(i) })).filter((d, at) => d.fails || at % step === 0);
      const tried = Plot.plot(base({ width: wide(view), height: 240, marginLeft: 52, marginTop: 28, marginBottom: 40, x, y: { type: "log", label: "↑ longest length", grid: true, ticks: d3.range(0, 25).map((e) => 2 ** e).filter((v) => v <= d3.max(dots, (d) => d.size) && v >= d3.min(dots, (d) => d.size)), tickFormat: "d" }, marks: [Plot.dot(dots.filter((d) => !d.fails), { x: "at", y: "size", r: 2.2, fill: color("good"), fillOpacity: 0.7 }), Plot.dot(dots.filter((d) => d.fails), { x: "at", y: "size", r: 5, symbol: "times", stroke: color("bad"), strokeWidth: 2, title: (d) => C.id[d.i] })] }));
      return [chart(`${run.name}: faults found`, found), chart("Lengths of the examples", tried, "✗ failed.")];
    });
    view.replaceChildren(...charts);
  };

  const bench = (view) => {
    const groups = d3.groups(D.bench, (d) => d.spec, (d) => d.pass);
    const charts = groups.flatMap(([spec, passes]) => passes.map(([name, rows]) => {
      const cases = [...new Set(rows.map((d) => d.case))], names = [...new Set(rows.map((d) => d.name))];
      const left = 24 + 7 * d3.max(names, (n) => Math.min(26, n.length));
      const palette = (n) => (n === "entry" ? color("bad") : color("good"));
      const plots = cases.map((each) => {
        const mine = rows.filter((d) => d.case === each);
        return el("div", {}, el("p", {}, el("code", {}, each)), Plot.plot(base({ width: wide(view), height: 62 + 24 * mine.length, marginLeft: left, marginRight: 170, marginTop: 10, marginBottom: 40, x: { label: "milliseconds: median and confidence interval →", labelAnchor: "center", ticks: 8, domain: [0, d3.max(mine, (d) => d.high) * 1.02], grid: true }, y: { domain: mine.map((d) => d.name), label: null, tickFormat: (v) => short(v), tickSize: 0 }, marks: [Plot.ruleX([0]), Plot.ruleY(mine, { y: "name", x1: "low", x2: "high", stroke: (d) => palette(d.name), strokeWidth: 4, strokeOpacity: 0.5 }), Plot.dot(mine, { x: "median", y: "name", r: 5, symbol: (d) => (d.name === "entry" ? "diamond" : "circle"), fill: (d) => palette(d.name), title: (d) => `${d.name}: ${num(d.median)} ms, ${num(d.low)} to ${num(d.high)}` }), Plot.text(mine, { x: "high", y: "name", dx: 8, textAnchor: "start", fill: color("soft"), text: (d) => `${num(d.median)} ms${d.flops ? `, ${num(d.flops / d.median / 1e9)} TFLOP/s` : ""}` })] })));
      });
      return chart(`${spec}, ${name}${rows[0].gpu ? ` on ${rows[0].gpu}` : ""}`, el("div", {}, ...plots));
    }));
    view.replaceChildren(...charts);
  };

  // Rendering ----------------------------------------------------------------------------------
  const VIEWS = { matrix, cases, errors, coverage, time, search, bench };
  const draw = (name, rows) => {
    const view = $(`[data-view="${name}"]`);
    if (!view) return;
    const focused = document.activeElement && view.contains(document.activeElement) ? document.activeElement.id : "";
    VIEWS[name](view, rows);
    if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  };
  let before = "";
  const render = () => {
    read();
    for (const section of $$("section")) section.classList.toggle("current", section.id === state.section);
    const top = state.section.startsWith("fault-") ? "faults" : state.section;
    for (const link of $$("nav a")) {
      const name = link.getAttribute("href").slice(1).split("?")[0];
      if (name === top) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      if (FILTERED.has(name)) link.setAttribute("href", address(name, new URLSearchParams(filters())));
    }
    const rows = selected();
    drawFilters(rows);
    if (state.section in VIEWS) draw(state.section, rows);
    if (before && before !== state.section) {
      document.getElementById(state.section).focus({ preventScroll: true });
      scrollTo({ top: 0, behavior: "instant" });
    }
    before = state.section;
  };
  addEventListener("hashchange", render);
  let resized;
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth === width) return; width = innerWidth; clearTimeout(resized); resized = setTimeout(render, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  addEventListener("beforeprint", () => {
    const rows = selected();
    for (const section of $$("section")) section.classList.add("current");
    for (const name of Object.keys(VIEWS)) if (name !== "cases") draw(name, rows);
    for (const each of $$("details")) each.open = true;
  });
  addEventListener("afterprint", render);

  // Theme, keyboard, copying, sorting of tables -------------------------------------------------
  const toggleTheme = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("tlmatrix-theme", root.dataset.theme); } catch { /* a file without storage */ }
    render();
  };
  $("#theme").addEventListener("click", toggleTheme);
  $("#keys").addEventListener("click", () => $("#help").showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea") || $("#help").open) return;
    const links = $$("nav a");
    if (/^[1-9]$/.test(event.key) && links[event.key - 1]) links[event.key - 1].click();
    else if (event.key === "/") { if (!FILTERED.has(state.section)) go({}, "cases"); event.preventDefault(); setTimeout(() => $("#q").focus()); }
    else if (event.key === "?") $("#help").showModal();
    else if (event.key === "t") toggleTheme();
    else if (event.key === "x") clearFilters();
    else if (event.key === "j" || event.key === "k") {
      const pages = $$(".fault").map((section) => section.id), at = pages.indexOf(location.hash.slice(1).split("?")[0]);
      const next = pages[at < 0 ? (event.key === "j" ? 0 : -1) : at + (event.key === "j" ? 1 : -1)];
      if (next) location.hash = next;
    }
  });
  for (const button of $$(".copy")) button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code").textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  for (const table of $$("table.sortable")) $$("thead th", table).forEach((head, column) => {
    if (!head.textContent) return;
    const button = el("button", { type: "button", class: "sort" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const other of $$("thead th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down < 0 ? "descending" : "ascending");
      const value = (row) => { const cell = row.children[column]; const text = cell.dataset.value ?? cell.textContent.replaceAll(",", ""); return text !== "" && !Number.isNaN(+text) ? +text : text; };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => down * d3.ascending(value(a), value(b))));
    });
  });
  render();
  addEventListener("load", () => setTimeout(() => scrollTo(0, 0)));
  document.documentElement.dataset.ready = "1";
})();
