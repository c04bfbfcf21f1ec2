// The last minutes or hours of one gate as a chart: rates per second and how many wait; or use and waiting time.

import { amount, say } from "./words.js";

/** What is drawn of a row, by its place after the time. */
const PLACES = { granted: 1, refused: 2, limited: 3, waiting: 4, utilisation: 5, waited: 6 };
const SERIES = Object.keys(PLACES);
const VIEWS = { rates: ["granted", "refused", "limited", "waiting"], use: ["utilisation", "waited"] };
/** Those that are counts of a step, and so are told per second. Of the others the largest of a step is drawn. */
const COUNTS = new Set(["granted", "refused", "limited"]);
/** Seconds of a row where the history has minutes. */
const MINUTE = 60;
const two = (number) => String(number).padStart(2, "0");

/** Rows: [time, granted, refused, limited, waiting, utilisation, waited], the last three or null; the newest last. */
export class Chart {
  constructor(place) {
    this.place = place;
    this.minutes = 10;
    this.view = "rates";
    this.rows = [];
    /** Rows of minutes, for the longest span. */
    this.past = [];
    this.plot = null;
    this.marks = Object.fromEntries(SERIES.map((name) => [name, document.querySelector(`.legend .${name}`)]));
    new ResizeObserver(() => this.fit()).observe(place);
  }

  /** Draw the chart from scratch, for another gate, span or theme. */
  renew() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.draw(this.rows);
  }

  draw(rows) {
    this.rows = rows;
    const data = this.binned(rows);
    if (this.plot) {
      this.plot.setData(data);
      return;
    }
    const { width, height } = this.size();
    if (width > 0) this.plot = new uPlot(this.options(width, height), data, this.place);
  }

  tell(rows) {
    const last = rows[rows.length - 1];
    for (const name of SERIES) say(document.getElementById(`now-${name}`), last ? figure(name, last[PLACES[name]]) : "–");
  }

  get names() {
    return VIEWS[this.view];
  }

  size() {
    return { width: Math.floor(this.place.clientWidth), height: Math.floor(this.place.clientHeight) };
  }

  fit() {
    const size = this.size();
    if (!this.plot) this.draw(this.rows);
    else if (size.width > 0) this.plot.setSize(size);
  }

  /** In steps of 1 s, of 5 s where the span is so long that single seconds would be noise, or of a minute from the history. */
  binned(rows) {
    const long = this.minutes > 10;
    const step = long ? MINUTE : this.minutes > 2 ? 5 : 1;
    if (long) {
      // The history has whole minutes; the seconds since then are added to them.
      const since = this.past.length ? this.past[this.past.length - 1][0] + MINUTE : 0;
      rows = [...this.past, ...rows.filter((row) => row[0] >= since)];
    }
    const newest = rows.length ? rows[rows.length - 1][0] : 0;
    const last = Math.floor(newest / step) * step - (step > 1 ? step : 0);
    const first = last - this.minutes * 60;
    const count = Math.round((last - first) / step) + 1;
    const data = [[], ...this.names.map(() => [])];
    for (let at = 0; at < count; at++) {
      data[0].push(first + at * step);
      for (let series = 1; series < data.length; series++) data[series].push(null);
    }
    for (const row of rows) {
      const at = Math.floor((row[0] - first) / step);
      if (at < 0 || at >= count) continue;
      this.names.forEach((name, series) => {
        const drawn = data[series + 1];
        const value = row[PLACES[name]];
        if (COUNTS.has(name)) drawn[at] = (drawn[at] || 0) + value / step;
        else if (value !== null && value !== undefined) drawn[at] = Math.max(drawn[at] || 0, name === "utilisation" ? value * 100 : value);
      });
    }
    return data;
  }

  options(width, height) {
    const colour = Object.fromEntries(SERIES.map((name) => [name, getComputedStyle(this.marks[name]).color]));
    const page = getComputedStyle(this.place);
    const text = page.color;
    const grid = page.borderTopColor;
    const font = `11px ${page.fontFamily}`;
    const upTo = (least) => (plot, low, high) => [0, Math.max(least, (high || 0) * 1.1)];
    const axis = { stroke: text, font, ticks: { show: false }, grid: { stroke: grid, width: 1 } };
    const line = (name, more) => ({ label: name, stroke: colour[name], width: 1.5, points: { show: false }, ...more });
    const figures = (plot, ticks) => ticks.map((tick) => amount(tick));
    const use = this.view === "use";
    const right = use ? "waited" : "waiting";
    return {
      width,
      height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 5 } },
      padding: [8, 4, 0, 4],
      scales: { x: { time: true }, y: { range: upTo(use ? 100 : 1) }, [right]: { range: upTo(use ? 1 : 5) } },
      axes: [
        { ...axis, space: 70, size: 24, grid: { show: false }, values: (plot, ticks) => ticks.map(clock) },
        { ...axis, size: 44, space: 32, values: figures },
        { ...axis, stroke: colour[right], side: 1, scale: right, size: 40, space: 32, grid: { show: false }, values: figures },
      ],
      series: use
        ? [{}, line("utilisation", { fill: faded(colour.utilisation), spanGaps: true }), line("waited", { scale: "waited", dash: [6, 3], spanGaps: true })]
        : [
            {},
            line("granted", { fill: faded(colour.granted) }),
            line("refused"),
            line("limited", { dash: [2, 2], width: 2 }),
            line("waiting", { scale: "waiting", dash: [6, 3], spanGaps: true }),
          ],
      hooks: { setCursor: [(plot) => this.point(plot)] },
    };
  }

  /** While the pointer is over the chart, show the figures of that moment instead of the latest. */
  point(plot) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) {
      this.tell(this.rows);
      return;
    }
    this.names.forEach((name, series) => say(document.getElementById(`now-${name}`), amount(plot.data[series + 1][at])));
  }

  get pointed() {
    return Boolean(this.plot) && this.plot.cursor.idx !== null && this.plot.cursor.idx !== undefined;
  }
}

function figure(name, value) {
  if (value === null || value === undefined) return "–";
  return amount(name === "utilisation" ? Math.round(value * 100) : value);
}

function clock(seconds) {
  const time = new Date(seconds * 1000);
  const rest = time.getSeconds();
  return `${two(time.getHours())}:${two(time.getMinutes())}${rest ? `:${two(rest)}` : ""}`;
}

function faded(rgb) {
  return rgb.replace("rgb(", "rgba(").replace(")", ", 0.14)");
}
