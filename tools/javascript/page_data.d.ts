// Types of the data that pages get, as gyroscope/report/run_data.py, report/sweep_data.py and live/ write them.
// An undetermined number is null.
type Known = number | null;
type Values = Known[];
type Severity = "bad" | "warn" | "note" | "good";

// ---- a report on runs: report/run_data.py
interface Report { runs: RunData[]; gyroscope: string; table: RunTable; left_out: string; min_rate_share: number; at: number | null }
interface RunTable { header: string[]; helps: string[]; rows: string[][] }
interface LayerTable { header: string[]; helps: string[]; rows: LayerRow[] }
interface LayerRow { layers: string[]; cells: string[]; values: Values; off: number[]; distance: Known; members: LayerRow[] }
interface RunData {
  name: string; id: string; status: string; total: number; stride: number; colour: number;
  steps: number[]; map_steps: number[]; series: Record<string, Values>;
  groups: GroupData[]; layers: LayerData[]; table: LayerTable;
  head: RunHead; summary: string[]; changes: Record<string, unknown>; findings: FindingData[]; marks: Mark[]; notes: string[]; scalars: Record<string, LoggedSeries>;
  config: unknown;
}
interface RunHead { optimizer: string; steps: number; lr: Known; weight_decay: Known; run_length: Known; loss_name: string; loss: Known }
interface FindingData {
  kind: string; severity: Severity; sentence: string; remedy: string; layers: string[];
  evidence: Record<string, Known>; trial: string; formula: string; mark: string; changes: Record<string, unknown>;
}
interface Mark { step: number; what: string; incident: boolean }
interface LoggedSeries { steps: number[]; values: Values; last: Known }
interface GroupData { rule: string; layers: number; series: Record<string, Values> }
interface LayerData {
  name: string; label: string; family: string; shape: number[]; granularity: string; vectors: number; fan_in: number; group: number;
  summary: LayerSummary;
  ratios: Values; distributions: Record<string, Distribution[]>; series: Record<string, Values>;
}
interface LayerSummary { reference: string }
interface Distribution { step: number; first: number; counts: number[]; least: number; least_id: number; most: number; most_id: number }

// ---- a run that is being written: live/feed.py, live/run_index.py
interface LiveData {
  series(run: RunData, layer: string): Promise<Record<string, Values> | null>;
  distribution(run: RunData, layer: string, quantity: string, step: number): Promise<Distribution | null>;
}
interface ListedRun { id: string; name: string; status: string; problem: string; step: number; idle: number; settings: string; loss: string; run_length: string }

// ---- a sweep: report/sweep_data.py
interface SweepData {
  name: string; metric: string; higher_is_better: boolean; planned: number; ended: number; tolerance: number;
  axes: Record<string, Setting[]>; drawn: string[]; settings: SettingData[]; arms: ArmData[]; comparisons: Comparison[];
  best: number; // null if no setting has a score
}
type Setting = number | string | boolean | null;
interface SettingData {
  settings: Record<string, any>; arm: number; n: number; mean: number; // null if n is 0
  deviation: Known; interval: Known; failures: number;
  p_best: Known; good: boolean; trials: TrialData[]; page: string;
}
type PlacedSetting = SettingData & { place: number };
interface TrialData { seed: number; value: Known; problem: string; ended: boolean; folder: string }
interface ArmData { name: string; best: number; good: number; settings: number; widths: Width[] }
interface Width { axis: string; low: number; high: number; decades: Known; at_low_end: boolean; at_high_end: boolean }
interface Comparison { first: number; second: number; difference: number; p_value: Known }

// ---- Plotly, as far as pages use it: traces and layouts are its own plain objects
type Trace = Record<string, any>;
type Layout = Record<string, any>;
interface Figure extends HTMLElement {
  layout?: Layout; data: Trace[];
  on(event: string, listener: (event: { points: { x: any; y: any; customdata: any }[] }) => void): void;
  removeAllListeners(event: string): void;
}
// An element that the page's own HTML has: also a choice or a slider.
interface PageElement extends Figure { value: any; max: any }
// Light and dark: theme.js. render/theme.py sets the colours.
interface Theme {
  listeners: (() => void)[]; chosen: boolean | null; dark: boolean; paper: boolean; system: MediaQueryList; readonly wanted: boolean;
  of(name: string): string; paint(dark?: boolean): void; families(): void; layout(): Layout; figures(): void; start(): void; colours: string[]; shade(colour: string): string;
}
// Scripts ask only for elements that their page has.
interface Document { getElementById(id: string): PageElement }
interface ParentNode { querySelector(selectors: string): PageElement }
declare const Plotly: {
  react(figure: Element, traces: Trace[], layout: Layout, config: object): void;
  update(figure: Element, traces: Trace, layout: Layout): void;
  purge(figure: Element): void;
};

// ---- what a page of runs shows at the moment: report.js. The report is there before anything is drawn.
interface PageState {
  report: Report; live: LiveData | null; run: number; layer: string; quantity: string; look: number;
  series: (Record<string, Values> | null)[];
  sort: [string, number]; filter: string; open: Set<string>; spoken: string;
}

interface TableRow { row: LayerRow; isMember: boolean; key: string }

// ---- a small chart of a layer: layer.js
interface Curve {
  measured: string; low?: string; high?: string; predicted?: string[]; group?: string;
  level?: number; log?: boolean;
}

// ---- a column of a table that its headings sort: figure.js
interface Column<Row> { key: string; label: string; help?: string; first?: number; value(row: Row): any; cell(row: Row): HTMLElement }
