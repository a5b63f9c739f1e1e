'use strict';
// One group at a time is selected, from any picture or table; its details open beside the graph.
function select(number, from) {
  document.querySelectorAll('.on').forEach((e) => e.classList.remove('on'));
  document.querySelectorAll(`[data-group="${number}"]`).forEach((e) => e.classList.add('on'));
  const details = document.getElementById(`group-${number}`);
  details.open = true;
  const list = details.parentElement;
  list.scrollTop = details.offsetTop - list.offsetTop - 8;
  document.getElementById('said').textContent = `Selected ${details.dataset.words}`;
  if (from && from.closest('table')) details.querySelector('summary').focus();
}

document.addEventListener('click', (event) => {
  const hit = event.target.closest('[data-select], .hit');
  if (hit) select(hit.dataset.select ?? hit.dataset.group, hit);
});

// A picture is one stop of the tab key; arrows move inside it.
document.querySelectorAll('svg').forEach((svg) => {
  const hits = [...svg.querySelectorAll('.hit')];
  hits.forEach((hit, number) => { hit.setAttribute('tabindex', number ? '-1' : '0'); });
  svg.addEventListener('keydown', (event) => {
    const at = hits.indexOf(document.activeElement);
    if (at < 0) return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) hits[(at + step + hits.length) % hits.length].focus();
    else if (event.key === 'Enter' || event.key === ' ') select(hits[at].dataset.group, hits[at]);
    else return;
    event.preventDefault();
  });
});

// Columns sort by their numbers, or by their words.
document.querySelectorAll('th button').forEach((button) => {
  button.addEventListener('click', () => {
    const head = button.parentElement, body = head.closest('table').tBodies[0];
    const column = head.cellIndex, up = head.getAttribute('aria-sort') === 'descending';
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b), less = x - y;
      const order = Number.isNaN(less) ? x.localeCompare(y) : less;
      return up ? order : -order;
    });
    head.parentElement.querySelectorAll('th').forEach((e) => e.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    body.append(...rows);
  });
});

const grid = document.getElementById('what-if-data');
if (grid) {
  const { axes, values } = JSON.parse(grid.textContent);
  const inputs = axes.map((_, number) => document.getElementById(`axis-${number}`));
  const value = (at) => values[at.reduce((sum, index, n) => sum * axes[n].values.length + index, 0)];
  const base = value(axes.map((axis) => axis.now));
  const show = () => {
    const at = inputs.map((input) => Number(input.value));
    at.forEach((index, n) => {
      const text = axes[n].values[index];
      document.getElementById(`shown-${n}`).textContent = text;
      inputs[n].setAttribute('aria-valuetext', text);
    });
    const [time, compute] = value(at), batch = Number(axes[3].values[at[3]]);
    const each = time / batch, ratio = base[0] / each;
    document.getElementById('what-if-time').textContent = `${time.toPrecision(4)} ms`;
    const verdict = document.getElementById('what-if-ratio');
    verdict.textContent = Math.abs(ratio - 1) < 0.005 ? 'as it is now'
      : `${ratio.toFixed(2)} times as many images a second as now`;
    verdict.className = ratio > 1.005 ? 'better' : ratio < 0.995 ? 'worse' : '';
    document.getElementById('what-if-compute').style.width = `${100 * compute / time}%`;
    document.getElementById('what-if-share').textContent =
      `${Math.round(100 * compute / time)}% of the time is compute`;
  };
  inputs.forEach((input) => input.addEventListener('input', show));
  document.getElementById('what-if-reset').addEventListener('click', () => {
    inputs.forEach((input, n) => { input.value = axes[n].now; });
    show();
  });
  show();
}
