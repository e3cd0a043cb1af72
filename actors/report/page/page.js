"use strict";
(() => {
  const told = JSON.parse(document.getElementById("told").textContent);
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const money = (usd) => (usd === 0 ? "$0" : usd >= 1 ? "$" + usd.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : "$" + Number(usd.toPrecision(4)));
  const count = (n) => n.toLocaleString("en");
  const short = (n) => (n >= 1000 ? count(Math.round(n)) : String(Number(n.toPrecision(3))));
  const many = (n, noun) => count(n) + " " + noun + (n === 1 ? "" : "s");
  const seconds = (s) => {
    const whole = Math.round(s);  // rounded before the division: 119.7 s are 2 min 0 s, not 1 min 60 s
    if (whole < 60) return short(s) + " s";
    if (whole < 3600) return Math.floor(whole / 60) + " min " + (whole % 60) + " s";
    return Math.floor(whole / 3600) + " h " + Math.floor((whole % 3600) / 60) + " min";
  };

  // The only place where data of the journal enters the page; always as text.
  function make(tag, attributes = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(name, value);
    made.append(...inside.filter((each) => each !== null && each !== ""));
    return made;
  }

  // -- theme -----------------------------------------------------------------------------------------------------

  const choice = document.getElementById("theme");
  let printing = false;
  const dark = () => !printing && (root.dataset.theme === "dark" || (root.dataset.theme !== "light" && system.matches));
  const colours = () => told.colours[dark() ? "dark" : "light"];
  function theme(name) {
    root.dataset.theme = name;
    choice.value = name;
    repaint();
  }
  choice.addEventListener("change", () => {
    theme(choice.value);
    try { localStorage.setItem("cortex-report-theme", choice.value); } catch (_) { /* a file may not be allowed to */ }
  });
  system.addEventListener("change", () => repaint());

  // -- stories and lists -----------------------------------------------------------------------------------------

  const SIGNS = { asked: "→", answered: "✔", failed: "✖", other: "•" };
  function story(key) {
    const known = told.stories[key];
    const box = make("div", { class: "story" });
    if (!known) {
      box.append(make("p", { class: "quiet" }, "The details of this goal are not in this report: cortex inspect shows them."));
      return box;
    }
    const lines = make("ol");
    let before = null;
    for (const [at, kind, said, text] of known.lines) {
      const gap = before !== null && at - before >= 0.001 && kind === "asked" ? " (" + seconds(at - before) + " later)" : "";
      lines.append(make("li", { class: kind }, make("span", {}, at.toFixed(3) + " s"), make("b", { "aria-hidden": "true" }, SIGNS[kind] || "•"), make("span", {}, said + gap, text ? make("q", {}, text) : "")));
      before = at;
    }
    box.append(make("p", { class: "quiet" }, "Times are since the beginning of the job."), lines);
    if (known.more) box.append(make("p", { class: "quiet" }, "and " + count(known.more) + " more lines"));
    if (known.prompt) box.append(make("p", { class: "quiet" }, "Its prompt begins:"), make("pre", { tabindex: "0" }, known.prompt));
    return box;
  }

  let numbered = 0;
  function table(columns, rows, after) {
    const body = make("tbody");
    for (const row of rows) {
      const line = make("tr");
      row.cells.forEach((cell, place) => line.append(make("td", columns[place][1] ? { class: "n" } : {}, cell)));
      body.append(line);
      if (after) after(row, line);
    }
    const heads = columns.map(([name, number]) => make("th", { scope: "col", class: number ? "n" : null }, name));
    return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  }

  function list(details) {
    const rows = told.lists[details.dataset.list];
    const columns = [["goal"], ["kind"], ["took", 1], ["attempts", 1], ["failed", 1], ["tokens", 1], ["cost", 1], ["last failure"]];
    const filled = rows.map((row) => {
      const button = make("button", { type: "button", "aria-expanded": "false" }, row.name);
      const failure = row.failure ? make("span", { class: "bad" }, row.failure + (row.said ? ": " + row.said : "")) : "";
      const which = make("span", { class: "quiet" }, " #" + row.key.slice(row.key.lastIndexOf(" ") + 1));
      return { key: row.key, button, cells: [make("div", { class: "goal" }, button, which), row.kind, seconds(row.took), count(row.attempts), count(row.failed), count(row.tokens), money(row.usd), failure] };
    });
    const made = table(columns, filled, (row, line) => {
      row.button.addEventListener("click", () => {
        const open = row.button.getAttribute("aria-expanded") === "true";
        row.button.setAttribute("aria-expanded", String(!open));
        if (open) {
          line.nextElementSibling.remove();
          row.button.removeAttribute("aria-controls");
        } else {
          const id = "story-" + ++numbered;
          row.button.setAttribute("aria-controls", id);
          line.after(make("tr", { id }, make("td", { colspan: columns.length }, story(row.key))));
        }
      });
    });
    details.append(make("div", { class: "wide", role: "region", tabindex: "0", "aria-label": details.firstElementChild.textContent }, made));
  }

  function once(details, fill) {
    const filled = () => {
      if (details.open && !details.dataset.filled) {
        details.dataset.filled = "1";
        fill(details);
      }
    };
    details.addEventListener("toggle", filled);
    filled();
  }

  // -- the goal tree ---------------------------------------------------------------------------------------------

  const MEASURES = { cost: 7, time: 8, failed: 9 };
  let order = "cost";
  function node(place) {
    const [key, name, kind, status, goals, attempts, failed, usd, took, failedGoals, children, more, moreUsd, said] = told.tree[place];
    const facts = [goals > 1 ? many(goals, "goal") : "", attempts ? many(attempts, "attempt") : "", usd ? money(usd) : "", took ? seconds(took) : "", failedGoals ? count(failedGoals) + " failed" : failed ? many(failed, "failed attempt") : ""].filter(Boolean).join(" · ");
    const summary = make("summary", {}, make("b", { class: status ? "status-" + status : null }, name || kind), make("span", { class: "kind" }, (name ? kind + " " : "") + (place ? "#" + key.slice(key.lastIndexOf(" ") + 1) + " " : "") + status), make("span", {}, facts));
    const details = make("details", {}, summary);
    once(details, () => {
      if (said) details.append(make("p", { class: "bad" }, said));
      if (place && told.stories[key]) details.append(story(key));
      const measure = MEASURES[order];
      const by = (one, other) => {
        if (!measure) return one - other;
        const a = told.tree[one], b = told.tree[other];
        return b[measure] - a[measure] || (order === "failed" ? b[6] - a[6] : 0) || one - other;
      };
      for (const child of [...children].sort(by)) details.append(node(child));
      if (more) details.append(make("p", { class: "quiet" }, "and " + count(more) + " more" + (moreUsd ? ", " + money(moreUsd) + " together" : "")));
      if (!children.length && !more && !told.stories[key] && !said) details.append(make("p", { class: "quiet" }, "No call was made for this goal."));
    });
    return details;
  }
  function grow() {
    const tree = document.getElementById("tree");
    if (!tree) return;
    const top = node(0);
    top.open = true;
    tree.replaceChildren(top);
  }

  // -- charts ----------------------------------------------------------------------------------------------------

  const charts = new Map(told.charts.map((chart) => [chart.id, chart]));
  const places = new Map();
  let library = null;

  const bin = (trace, i) => (trace.whole ? (trace.to[i] - trace.from[i] <= 1 ? count(trace.from[i]) : count(trace.from[i]) + " to " + count(trace.to[i] - 1)) : short(trace.from[i]) + " to " + short(trace.to[i]));

  const DRAW = {
    bar: (t, c) => ({ type: "bar", x: t.x, y: t.y, marker: { color: c.marks[t.mark], line: { width: 0 }, pattern: { shape: told.patterns[t.mark] || "", fillmode: "overlay", fgcolor: c.ground, size: 5, solidity: 0.3 } } }),
    area: (t, c) => ({ type: "scatter", mode: "lines", x: t.x, y: t.y, fill: "tozeroy", fillcolor: c.marks[t.mark] + "40", line: { color: c.marks[t.mark], width: 2 } }),
    step: (t, c) => ({ type: "scatter", mode: "lines", x: t.x, y: t.y, line: { color: c.marks[t.mark], width: 2, dash: "dot", shape: "hv" } }),
    line: (t, c) => ({ type: "scatter", mode: "lines", x: t.x, y: t.y, line: { color: c.marks[t.mark], width: 2, dash: t.dash } }),
    heatmap: (t, c) => ({ type: "heatmap", x: t.x, y: t.y, z: t.z, colorscale: [[0, c.panel], [1, c.marks.answered]], ygap: 2, colorbar: { title: { text: t.name, side: "right" }, thickness: 12, outlinewidth: 0 }, hovertemplate: "%{y}, %{x}: %{z} at once<extra></extra>" }),
    marks: (t, c) => ({ type: "scatter", mode: "markers", x: t.x, y: t.y, marker: { symbol: "x-thin", size: 7, line: { color: c.marks[t.mark], width: 2 } }, text: t.size.map((n) => count(n) + " failed"), hovertemplate: "%{y}, %{x}: %{text}<extra></extra>" }),
    spans: (t, c) => {
      const x = [], y = [], text = [];
      for (let i = 0; i < t.from.length; i++) { x.push(t.from[i], t.to[i], null); y.push(t.lane[i], t.lane[i], null); text.push(t.said[i], t.said[i], ""); }
      return { type: "scatter", mode: t.name === "answered" ? "lines" : "lines+markers", x, y, text, line: { color: c.marks[t.mark], width: 4 }, marker: { symbol: "x-thin", size: 7, line: { color: c.marks[t.mark], width: 2 } }, hovertemplate: "%{text}: " + t.name + " at %{x:.3f}<extra></extra>" };
    },
    histogram: (t, c) => ({ type: "bar", x: t.y.map((_, i) => i), y: t.y, width: 0.92, marker: { color: c.marks[t.mark], line: { width: 0 } }, text: t.y.map((_, i) => bin(t, i)), textposition: "none", hovertemplate: "%{text}: %{y:,} calls<extra></extra>" }),
  };

  function ticks(trace) {
    const n = trace.y.length, step = Math.max(1, Math.ceil(n / 7)), vals = [], text = [];
    for (let i = 0; i < n; i += step) { vals.push(trace.whole ? i : i - 0.5); text.push(short(trace.from[i])); }
    if (!trace.whole) { vals.push(n - 0.5); text.push(short(trace.to[n - 1])); if (n % step && n % step < step / 2) { vals.splice(-2, 1); text.splice(-2, 1); } }
    return { tickvals: vals, ticktext: text };
  }

  function layout(chart, c) {
    const first = chart.traces[0];
    const axis = { color: c.quiet, gridcolor: c.line, linecolor: c.line, zerolinecolor: c.line, automargin: true, fixedrange: false, exponentformat: "none", separatethousands: true };
    const made = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: c.text, family: getComputedStyle(document.body).fontFamily, size: 13 },
      margin: { l: 56, r: 12, t: 8, b: 44 }, showlegend: false, hovermode: ["spans", "heatmap", "histogram"].includes(first.type) ? "closest" : "x unified", dragmode: "zoom",
      hoverlabel: { bgcolor: c.panel, bordercolor: c.line, font: { color: c.text } },
      xaxis: { ...axis, title: { text: chart.x, standoff: 8 }, ...(first.type === "histogram" ? ticks(first) : {}) },
      yaxis: { ...axis, title: { text: chart.y, standoff: 8 }, rangemode: "tozero" }, bargap: 0, barmode: chart.stacked ? "stack" : "overlay", shapes: [],
    };
    if (chart.ticks) Object.assign(made.yaxis, { tickvals: chart.ticks.map((t) => t[0]), ticktext: chart.ticks.map((t) => t[1]), range: [-1, chart.rows], rangemode: "normal", showgrid: false, title: {} });
    if (first.type === "heatmap") Object.assign(made.yaxis, { title: {}, showgrid: false });
    for (const band of chart.bands || []) made.shapes.push({ type: "rect", xref: "x", yref: "paper", x0: band.from, x1: band.to, y0: 0, y1: 1, fillcolor: c.marks[band.mark], opacity: band.mark === "held" ? 0.12 : 0.2, line: { width: 0 }, layer: "below" });
    if (chart.limit) made.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: chart.limit.y, y1: chart.limit.y, line: { color: c.marks.limit, width: 1.5, dash: "dash" } });
    return made;
  }

  function draw(id, anew) {
    const chart = charts.get(id), place = places.get(id), c = colours();
    const traces = chart.traces.map((t) => ({ name: t.name, ...DRAW[t.type](t, c) }));
    const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    (anew ? library.newPlot : library.react)(place.plot, traces, layout(chart, c), config);
    place.key.replaceChildren(...legend(chart, c));
  }

  // A sample of each line and each filling, with its name: colour is never the only difference.
  function legend(chart, c) {
    const found = chart.traces.filter((t) => t.mark && t.type !== "histogram").map((t) => [t.name, swatch(t, c)]);
    if (chart.limit) found.push([chart.limit.name, stroke(c.marks.limit, "6 3")]);
    for (const said of new Set((chart.bands || []).map((band) => band.said))) {
      const band = chart.bands.find((each) => each.said === said);
      found.push([{ open: "breaker open", "half open": "breaker half open: probes" }[said] || "the provider asked to wait", svg("rect", { width: 24, height: 14, fill: c.marks[band.mark], opacity: 0.4 })]);
    }
    return found.map(([name, sample]) => make("li", {}, sample, name));
  }
  function svg(tag, attributes, more = []) {
    const outer = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    outer.setAttribute("viewBox", "0 0 24 14");
    outer.setAttribute("aria-hidden", "true");
    for (const [name, given] of [[tag, attributes], ...more]) {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
      outer.append(made);
    }
    return outer;
  }
  const stroke = (colour, dashes) => svg("line", { x1: 0, x2: 24, y1: 7, y2: 7, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dashes || "none" });
  const LINES = { "/": [[0, 14, 8, 0], [8, 14, 16, 0], [16, 14, 24, 0]], "\\": [[0, 0, 8, 14], [8, 0, 16, 14], [16, 0, 24, 14]], x: [[0, 14, 12, 0], [0, 0, 12, 14], [12, 14, 24, 0], [12, 0, 24, 14]], "|": [[6, 0, 6, 14], [12, 0, 12, 14], [18, 0, 18, 14]], "-": [[0, 4, 24, 4], [0, 10, 24, 10]], "+": [[8, 0, 8, 14], [16, 0, 16, 14], [0, 7, 24, 7]], ".": [[5, 7, 7, 7], [11, 7, 13, 7], [17, 7, 19, 7]] };
  function swatch(t, c) {
    const colour = c.marks[t.mark];
    if (t.type === "bar") return svg("rect", { width: 24, height: 14, fill: colour }, (LINES[told.patterns[t.mark]] || []).map(([x1, y1, x2, y2]) => ["line", { x1, y1, x2, y2, stroke: c.ground, "stroke-width": 1.6 }]));
    if (t.type === "marks" || (t.type === "spans" && t.name !== "answered")) return svg("path", { d: "M8 3l8 8M16 3l-8 8", stroke: colour, "stroke-width": 2.5 });
    return stroke(colour, t.type === "step" ? "2 3" : t.dash === "dash" ? "7 4" : "");
  }

  function figures(chart) {
    if (chart.table) return { columns: chart.table.columns.map((name, place) => [name, place > 0]), rows: chart.table.rows.map((cells) => ({ cells })) };
    const columns = [[chart.x, 1], ...chart.traces.map((t) => [t.name + (chart.traces.length > 1 ? "" : ", " + chart.y), 1])];
    const all = chart.traces[0].x.map((x, i) => ({ cells: [short(x), ...chart.traces.map((t) => short(t.y[i]))], any: chart.traces.some((t) => t.y[i]) }));
    return { columns, rows: all.filter((row) => row.any) };
  }

  function frame() {
    for (const figure of document.querySelectorAll("[data-chart]")) {
      const chart = charts.get(figure.dataset.chart);
      if (!chart) continue;
      figure.hidden = false;
      const plot = make("div", { class: "plot", role: "img", "aria-label": chart.title + ". " + chart.said + " The figures are in the table below it." });
      if (chart.rows) plot.style.height = Math.min(44, Math.max(9, 5 + chart.rows * (chart.ticks ? 0.5 : 1.6))) + "rem";
      const key = make("ul", { class: "key", "aria-label": "Key" });
      const details = make("details", { class: "figures" }, make("summary", {}, "The figures as a table"));
      once(details, () => {
        const { columns, rows } = figures(chart);
        details.append(make("div", { tabindex: "0", role: "region", "aria-label": "Figures: " + chart.title }, table(columns, rows)));
      });
      if (!document.getElementById("library")) { plot.classList.add("empty"); plot.hidden = true; details.open = true; }
      figure.append(make("figcaption", {}, make("b", {}, chart.title), make("span", {}, chart.said)), plot, key, details);
      places.set(chart.id, { plot, key });
    }
  }

  function repaint() {
    if (library) for (const id of places.keys()) draw(id, !places.get(id).plot.data);
  }

  async function unpack(packed) {
    const signs = atob(packed), bytes = new Uint8Array(signs.length);
    for (let i = 0; i < signs.length; i++) bytes[i] = signs.charCodeAt(i);
    const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
    const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    // As a separate file the library is compiled in the background, and the page stays usable.
    await new Promise((done, failed) => document.head.append(Object.assign(document.createElement("script"), { src: address, async: true, onload: done, onerror: failed })));
    URL.revokeObjectURL(address);
  }

  async function paint() {
    const packed = document.getElementById("library");
    if (!packed) return;
    try {
      await unpack(packed.textContent);
      library = window.Plotly;
      // Visible charts first, then the others one at a time, so that the page stays responsive.
      const seen = (id) => places.get(id).plot.getBoundingClientRect().top < innerHeight;
      const first = [...places.keys()].filter(seen);
      first.forEach((id) => draw(id, true));
      performance.mark("interactive");
      for (const id of [...places.keys()].filter((each) => !first.includes(each))) {
        await new Promise((done) => setTimeout(done));
        draw(id, true);
      }
    } catch (error) {
      console.error(error);
      for (const { plot } of places.values()) { plot.style.height = "auto"; plot.textContent = "This browser cannot draw the charts; their figures are in the tables."; }
    }
  }

  // -- begin -----------------------------------------------------------------------------------------------------

  let kept = null;
  try { kept = localStorage.getItem("cortex-report-theme"); } catch (_) { /* as above */ }
  if (kept === "light" || kept === "dark") { root.dataset.theme = kept; choice.value = kept; }
  document.querySelectorAll("details[data-list]").forEach((details) => once(details, list));
  const ordering = document.getElementById("order");
  if (ordering) ordering.addEventListener("change", () => { order = ordering.value; grow(); });
  addEventListener("beforeprint", () => { printing = true; repaint(); });
  addEventListener("afterprint", () => { printing = false; repaint(); });

  function begin() {
    grow();
    frame();
    performance.mark("readable");
    setTimeout(() => paint().then(() => { performance.mark("drawn"); root.dataset.drawn = "1"; }));
  }
  document.readyState === "loading" ? addEventListener("DOMContentLoaded", begin) : begin();
})();
