import { render } from "preact";
import { App } from "./App";
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/tables.css";
import "./style/job.css";
import "./style/token.css";

const page = document.getElementById("page");
if (page === null) throw new Error("index.html has no element with the id 'page'");
render(<App />, page);
