// The facts of a mixture: its datasets, the keys of its batches, and what cannot be joined.
function mixture() {
  const { summary, datasets, keys, problems } = data.mixture;
  const number = (text, i) => (i && /^\d[\d,]*$/.test(text) ? Number(text.replaceAll(",", "")) : text);
  const table = (label, [names, ...rows]) => plainTable(label, names, rows.map((row) => row.map(number)), true);
  section("datasets", "Datasets", el("p", {}, summary), table("Datasets", datasets));
  section("keys", "Keys of batches", table("Keys of batches", keys));
  if (problems.length) section("problems", "What cannot be joined", el("ul", {}, problems.map((each) => el("li", {}, each))));
}
