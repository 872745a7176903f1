// The facts of a mixture: its datasets, the keys of its batches, and what cannot be joined.
function mixture() {
  const { summary, datasets, keys, problems } = data.mixture;
  // A column of numbers is aligned as numbers; the first one has names.
  function table(label, [names, ...rows]) {
    const numeric = names.map((_, i) => i && rows.every((row) => /^[\d,.]+(e[+-]\d+)?$/.test(row[i])));
    return plainTable(label, names, rows.map((row) => row.map((text, i) => (numeric[i] ? Number(text.replaceAll(",", "")) : text))), true);
  }
  section("datasets", "Datasets", el("p", {}, summary), table("Datasets", datasets));
  section("keys", "Keys of batches", table("Keys of batches", keys));
  if (problems.length) section("problems", "What cannot be joined", el("ul", {}, problems.map((each) => el("li", {}, each))));
}
