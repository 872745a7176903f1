header();
overview();
viewer();
returns();
episodes();
outliers();
columns();
visitation();
targets();
sampler();
comparison();
findings();
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details.facts").forEach((each) => { each.open = true; });
  return drawAll();
});
document.documentElement.dataset.ready = "true";
