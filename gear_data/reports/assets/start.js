header();
const sections = data.mixture ? [mixture, viewer]
  : [overview, viewer, returns, episodes, outliers, columns, visitation, targets, sampler, comparison, findings];
sections.forEach((each) => each());
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details.facts").forEach((each) => { each.open = true; });
  return drawAll();
});
document.documentElement.dataset.ready = "true";
