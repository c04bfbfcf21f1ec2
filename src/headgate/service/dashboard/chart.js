// The last minutes of one gate as a chart: rates per second on the left, how many wait on the right.

import { amount, say } from "./words.js";

const SERIES = ["granted", "refused", "limited", "waiting"];
const two = (number) => String(number).padStart(2, "0");

/** Rows of counts: [time, granted, refused, limited, waiting or null]; the newest last. */
export class Chart {
  constructor(place) {
    this.place = place;
    this.minutes = 10;
    this.rows = [];
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
    SERIES.forEach((name, at) => say(document.getElementById(`now-${name}`), last ? amount(last[at + 1]) : "–"));
  }

  size() {
    return { width: Math.floor(this.place.clientWidth), height: Math.floor(this.place.clientHeight) };
  }

  fit() {
    const size = this.size();
    if (!this.plot) this.draw(this.rows);
    else if (size.width > 0) this.plot.setSize(size);
  }

  /** Counts per second in steps of 1 s, or of 5 s where the span is so long that single seconds would be noise. */
  binned(rows) {
    const step = this.minutes > 2 ? 5 : 1;
    const newest = rows.length ? rows[rows.length - 1][0] : 0;
    const last = Math.floor(newest / step) * step - (step > 1 ? step : 0);
    const first = last - this.minutes * 60;
    const count = Math.round((last - first) / step) + 1;
    const data = [[], [], [], [], []];
    for (let at = 0; at < count; at++) {
      data[0].push(first + at * step);
      for (let series = 1; series < 5; series++) data[series].push(null);
    }
    for (const row of rows) {
      const at = Math.floor((row[0] - first) / step);
      if (at < 0 || at >= count) continue;
      for (let series = 1; series < 4; series++) data[series][at] = (data[series][at] || 0) + row[series] / step;
      if (row[4] !== null) data[4][at] = Math.max(data[4][at] || 0, row[4]);
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
    return {
      width,
      height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 5 } },
      padding: [8, 4, 0, 4],
      scales: { x: { time: true }, y: { range: upTo(1) }, waiting: { range: upTo(5) } },
      axes: [
        { ...axis, space: 70, size: 24, grid: { show: false }, values: (plot, ticks) => ticks.map(clock) },
        { ...axis, size: 44, space: 32, values: figures },
        { ...axis, stroke: colour.waiting, side: 1, scale: "waiting", size: 40, space: 32, grid: { show: false }, values: figures },
      ],
      series: [
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
    SERIES.forEach((name, series) => say(document.getElementById(`now-${name}`), amount(plot.data[series + 1][at])));
  }

  get pointed() {
    return Boolean(this.plot) && this.plot.cursor.idx !== null && this.plot.cursor.idx !== undefined;
  }
}

function clock(seconds) {
  const time = new Date(seconds * 1000);
  const rest = time.getSeconds();
  return `${two(time.getHours())}:${two(time.getMinutes())}${rest ? `:${two(rest)}` : ""}`;
}

function faded(rgb) {
  return rgb.replace("rgb(", "rgba(").replace(")", ", 0.14)");
}
