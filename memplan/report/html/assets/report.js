"use strict";
// Data comes from a JSON block and reaches the page as text only: names are not trusted.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const LABEL_PIXELS = 66;
  const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

  function bytes(value) {
    for (const [unit, factor] of UNITS) {
      if (value >= factor) {
        const scaled = value / factor;
        return scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0) + " " + unit;
      }
    }
    return value + " B";
  }

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  const section = document.getElementById("tensors");
  const tensors = section ? allTensors(section) : { at() {} };

  // ---- timeline: hover, arrow keys, drag to zoom

  document.querySelectorAll(".chart").forEach((chart, k) => {
    if (data.charts[k].steps.length) timeline(chart, data.charts[k]);
  });

  function timeline(chart, data) {
    const plot = chart.querySelector(".plot");
    const svg = plot.querySelector("svg");
    const cursor = plot.querySelector(".cursor");
    const brush = plot.querySelector(".brush");
    const tip = plot.querySelector(".tip");
    const axis = chart.querySelector(".steps");
    const count = data.count;
    const height = svg.viewBox.baseVal.height;
    let from = 0, to = count, selected = null, pressed = null;

    const percent = step => 100 * (step - from) / (to - from) + "%";

    function layout() {
      svg.setAttribute("viewBox", `${from} 0 ${to - from} ${height}`);
      for (const band of chart.querySelectorAll("[data-from]")) {
        const start = Math.max(Number(band.dataset.from), from);
        const end = Math.min(Number(band.dataset.to), to);
        band.hidden = end <= start;
        band.style.left = percent(start);
        band.style.width = 100 * (end - start) / (to - from) + "%";
        const pixels = plot.clientWidth * (end - start) / (to - from);
        band.classList.toggle("narrow", pixels < LABEL_PIXELS);
      }
      const peak = plot.querySelector(".peak");
      const place = (data.peak + 0.5 - from) / (to - from);
      peak.hidden = place < 0 || place > 1;
      peak.style.left = 100 * place + "%";
      peak.classList.toggle("right", place > 0.93);
      peak.classList.toggle("left", place < 0.07);
      axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((part, k) => {
        const step = Math.round(from + part * (to - from));
        const label = element("span", k ? String(step) : `step ${step}`);
        label.style.left = 100 * part + "%";
        return label;
      }));
    }

    function nearest(step) {
      // Each kept point stands for the steps up to the next one.
      let low = 0, high = data.steps.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (data.steps[middle] <= step) low = middle; else high = middle - 1;
      }
      return low;
    }

    function show(index) {
      selected = index;
      cursor.hidden = tip.hidden = index === null;
      if (index === null) return;
      const step = data.steps[index];
      const place = (step + 0.5 - from) / (to - from);
      cursor.style.left = 100 * place + "%";
      tip.style.left = place > 0.5 ? "" : `calc(${100 * place}% + 14px)`;
      tip.style.right = place > 0.5 ? `calc(${100 - 100 * place}% + 14px)` : "";
      tip.replaceChildren(...describe(index, step));
    }

    function describe(index, step) {
      const rows = element("table");
      let total = 0;
      for (const [name, values] of data.layers) {
        const value = Array.isArray(values) ? values[index] : values;
        if (name !== "workspace") total += value;
        if (!value) continue;
        const row = rows.insertRow(0);
        const cell = row.insertCell();
        const swatch = element("span", undefined, "swatch");
        swatch.style.background = `var(--${name})`;
        cell.append(swatch, name.replace("_", " "));
        row.insertCell().textContent = bytes(value);
      }
      const title = element("p");
      title.append(element("b", bytes(total)), ` at step ${step} of ${count}`);
      const node = element("p");
      node.append(data.ops[data.op[index]] + " ", element("code", data.names[index]));
      const where = `${data.phases[data.phase[index]]} · ${data.modules[data.module[index]]}`;
      return [title, node, element("p", where, "soft"), rows];
    }

    const stepAt = event => {
      const box = plot.getBoundingClientRect();
      const place = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.999999);
      return from + place * (to - from);
    };

    plot.addEventListener("pointermove", event => {
      const step = stepAt(event);
      if (pressed !== null) {
        brush.hidden = false;
        brush.style.left = percent(Math.min(pressed, step));
        brush.style.width = 100 * Math.abs(step - pressed) / (to - from) + "%";
      }
      show(nearest(step));
    });
    plot.addEventListener("pointerleave", () => { if (pressed === null) show(null); });
    plot.addEventListener("pointerdown", event => {
      pressed = stepAt(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointerup", event => {
      const step = stepAt(event);
      const start = Math.floor(Math.min(pressed, step)), end = Math.ceil(Math.max(pressed, step));
      if (Math.abs(step - pressed) / (to - from) > 0.01 && end - start >= 2) {
        [from, to] = [start, end];
        layout();
        show(nearest(stepAt(event)));  // another step lies under the pointer now
      } else {
        tensors.at(data.steps[nearest(step)]);
      }
      pressed = null;
      brush.hidden = true;
    });
    plot.addEventListener("dblclick", event => {
      [from, to] = [0, count];
      layout();
      show(nearest(stepAt(event)));
    });
    chart.addEventListener("keydown", event => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) {
        const start = selected === null ? nearest(data.peak) : selected + move;
        show(Math.min(Math.max(start, 0), data.steps.length - 1));
        event.preventDefault();
      } else if (event.key === "Escape") {
        [from, to] = [0, count];
        layout();
        show(null);
      }
    });
    chart.addEventListener("blur", () => show(null));
    addEventListener("resize", layout);
    layout();
  }

  // ---- all tensors: search, sort, those alive at a step

  function allTensors(section) {
    const SHOWN = 200;
    const all = data.tensors;
    const input = section.querySelector("input");
    const chip = section.querySelector(".step");
    const table = section.querySelector("table");
    const heads = [...table.tHead.rows[0].cells];
    const text = {
      class: k => all.classes[all.class[k]].replace("_", " "),
      module: k => all.modules[all.module[k]],
    };
    const value = (column, k) => text[column] ? text[column](k) : all[column][k];
    const order = all.name.map((_, k) => k);
    const found = order.map(k => [
      all.name[k], all.also[k], all.made[k], text.module(k), text.class(k),
    ].join("\n").toLowerCase());
    let step = null, sorted = { column: "bytes", sign: -1 };

    function fill() {
      const words = input.value.toLowerCase().split(" ").filter(word => word);
      const alive = k => step === null || (all.birth[k] <= step && step < all.death[k]);
      const matching = order.filter(k => alive(k) && words.every(word => found[k].includes(word)));
      const shown = matching.slice(0, SHOWN);
      table.tBodies[0].replaceChildren(...shown.map(row));
      const total = matching.reduce((sum, k) => sum + all.bytes[k], 0);
      const most = matching.length > SHOWN ? `, the first ${SHOWN} of them shown` : "";
      section.querySelector("small").textContent =
        `${matching.length} of ${all.all}, ${bytes(total)} together${most}` +
        (all.name.length < all.all ? `; the ${all.name.length} largest can be searched` : "");
      chip.hidden = step === null;
      chip.textContent = `alive at step ${step} ×`;
    }

    function row(k) {
      const made = element("tr");
      for (const head of heads) {
        const column = head.dataset.column, cell = element("td");
        const content = value(column, k);
        if (column === "bytes") {
          cell.textContent = bytes(content);
          cell.title = content + " B";
        } else if (column === "birth" || column === "death") {
          const edge = { [-1]: "before", [data.charts[0].count]: "end" };
          cell.textContent = edge[content] ?? content;
        } else {
          if (column === "class") {
            const swatch = element("span", undefined, "swatch");
            swatch.style.background = `var(--${all.classes[all.class[k]]})`;
            cell.append(swatch);
          }
          cell.append(content);
          cell.title = column === "name" && all.also[k] ? `${content}, also ${all.also[k]}` : content;
        }
        if (head.dataset.kind === "number") cell.className = "number";
        made.append(cell);
      }
      return made;
    }

    function sort(head) {
      const column = head.dataset.column, first = head.dataset.kind === "number" ? -1 : 1;
      sorted = { column, sign: sorted.column === column ? -sorted.sign : first };
      const by = head.dataset.kind === "number"
        ? (a, b) => a - b : (a, b) => a.localeCompare(b, undefined, { numeric: true });
      order.sort((a, b) => sorted.sign * by(value(column, a), value(column, b)));
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sorted.sign > 0 ? "ascending" : "descending");
      fill();
    }

    function at(picked) {
      step = picked;
      fill();
    }

    section.hidden = !all.name.length;
    heads.find(head => head.dataset.column === "bytes").setAttribute("aria-sort", "descending");
    for (const head of heads) head.firstElementChild.addEventListener("click", () => sort(head));
    input.addEventListener("input", fill);
    chip.addEventListener("click", () => at(null));
    fill();
    return { at };
  }

  // ---- tables: sort by any column

  for (const table of document.querySelectorAll("table.live")) {
    if (table.closest("#tensors")) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
      const numeric = head.dataset.kind !== "text";
      const first = numeric ? "descending" : "ascending";
      const other = numeric ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = numeric
        ? (a, b) => Number(key(a)) - Number(key(b))
        : (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].sort((a, b) => sign * compare(a, b));
      table.tBodies[0].append(...rows);
    }));
  }
})();
