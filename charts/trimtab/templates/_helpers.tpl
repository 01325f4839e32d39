{{/*
What templates share. Objects are called trimtab-COMPONENT whatever the release is called: there is one Trimtab per
cluster, and Helm refuses a second release because these are there already.
*/}}

{{/* Chart and version, as Helm's own label has it. */}}
{{- define "trimtab.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* By what pods of a component are found. Argument: its name. */}}
{{- define "trimtab.selector" -}}
app.kubernetes.io/name: trimtab-{{ . }}
{{- end }}

{{/* Labels of every object. Argument: list of root and component. */}}
{{- define "trimtab.labels" -}}
{{- $root := index . 0 -}}
{{- include "trimtab.selector" (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: trimtab
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ include "trimtab.chart" $root }}
{{- end }}

{{/* Labels of a component's pods: none that changes with the chart's version alone, or every upgrade would restart them. */}}
{{- define "trimtab.podLabels" -}}
{{- $root := index . 0 -}}
{{- include "trimtab.selector" (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: trimtab
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An image of Trimtab. Argument: list of root and the component's `image`. */}}
{{- define "trimtab.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- with $root.Values.image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* An image of somebody else. Argument: its `image`, and the tag that counts where it has none. */}}
{{- define "trimtab.foreignImage" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end }}

{{/* Name of a component's ServiceAccount. Argument: list of root and component. */}}
{{- define "trimtab.account" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
{{- $values.serviceAccount.name | default (printf "trimtab-%s" (index . 1)) -}}
{{- end }}

{{/* A ServiceAccount, where the chart makes it. Argument: list of root, component and namespace. */}}
{{- define "trimtab.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
{{- if $values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "trimtab.account" (list $root (index . 1)) }}
  namespace: {{ index . 2 }}
  labels:
    {{- include "trimtab.labels" (list $root (index . 1)) | nindent 4 }}
  {{- with $values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false # the pod projects one of its own, which expires
{{- end -}}
{{- end }}

{{/* A binding. Argument: dict of root, kind, name, role (and roleKind), account, accountNamespace, component, namespace. */}}
{{- define "trimtab.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "trimtab.labels" (list .root .component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .roleKind | default (trimSuffix "Binding" .kind) }}
  name: {{ .role | default .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .accountNamespace }}
{{- end }}

{{/* Namespace of the agents. */}}
{{- define "trimtab.agentNamespace" -}}
{{- .Values.agent.namespace | default .Release.Namespace -}}
{{- end }}

{{/* Pods that run as nobody: what Pod Security calls `restricted`. */}}
{{- define "trimtab.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The same for a container. */}}
{{- define "trimtab.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* A token that expires, where client libraries look for it. Argument: mode of the files. */}}
{{- define "trimtab.tokenVolume" -}}
- name: token
  projected:
    defaultMode: {{ . }}
    sources:
      - serviceAccountToken: { path: token, expirationSeconds: 3600 }
      - configMap:
          name: kube-root-ca.crt
          items: [{ key: ca.crt, path: ca.crt }]
      - downwardAPI:
          items: [{ path: namespace, fieldRef: { fieldPath: metadata.namespace } }]
{{- end }}

{{/* Its mount. */}}
{{- define "trimtab.tokenMount" -}}
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}

{{/* Where pods may go, and how important they are. Argument: the component's values. */}}
{{- define "trimtab.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Affinity of pods: that of the values, or that replicas keep apart; and where there are fake nodes, never on one of those: a
pod would seem to run there, and do nothing. Argument: list of root, the values' affinity, and the component that keeps
apart or "".
*/}}
{{- define "trimtab.affinity" -}}
{{- $affinity := deepCopy (index . 1) -}}
{{- $component := index . 2 -}}
{{- if and $component (not $affinity) -}}
{{- $others := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "trimtab.selector" $component | fromYaml)) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $others))) -}}
{{- end -}}
{{- if (index . 0).Values.fakeNodes.enabled -}}
{{- $real := dict "key" "fake.trimtab.dev/profile" "operator" "DoesNotExist" -}}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $narrowed := list -}}
{{- range $terms -}}
{{- $narrowed = append $narrowed (merge (dict "matchExpressions" (append (dig "matchExpressions" list .) $real)) .) -}}
{{- end -}}
{{- $node := merge (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $narrowed)) (dig "nodeAffinity" dict $affinity) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Secrets for pulling images. */}}
{{- define "trimtab.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Port of metrics and health: each process has a default of its own (trimtab.settings). Argument: component. */}}
{{- define "trimtab.metricsPort" -}}
{{- get (dict "controller" 8080 "extender" 8081 "agent" 8082 "fake-nodes" 8082 "web" 8083) . -}}
{{- end }}

{{/* Annotations of pods: where metrics are, what restarts them when it changes, and those of the values. Argument: list of root, component and annotations. */}}
{{- define "trimtab.podAnnotations" -}}
{{- $root := index . 0 -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ include "trimtab.metricsPort" (index . 1) | quote }}
{{- if include "trimtab.metricsSecret" (list $root (index . 1)) }}
prometheus.io/scheme: https
{{- end }}
{{- with $root.Values.settings }}
checksum/settings: {{ toYaml . | sha256sum }}
{{- end }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Environment of all processes of Trimtab. */}}
{{- define "trimtab.commonEnv" -}}
- name: TRIMTAB_LOG__LEVEL
  value: {{ .Values.log.level }}
- name: TRIMTAB_LOG__FORMAT
  value: {{ .Values.log.format }}
{{- with .Values.settings }}
- name: TRIMTAB_CONFIG
  value: /etc/trimtab/settings/settings.yaml
{{- end }}
{{- end }}

{{/* Secret of the certificate under which a component tells its metrics; empty for plain HTTP. Argument: list of root and component. */}}
{{- define "trimtab.metricsSecret" -}}
{{- $tls := (index . 0).Values.metrics.tls -}}
{{- get (dict "controller" $tls.secretName "extender" $tls.secretName "agent" $tls.agentSecretName "web" $tls.secretName) (index . 1) -}}
{{- end }}

{{/* How metrics are told, and whom: agents ask for a certificate at most. Argument: list of root and component. */}}
{{- define "trimtab.metricsEnv" -}}
{{- $metrics := (index . 0).Values.metrics -}}
{{- if include "trimtab.metricsSecret" . }}
- name: TRIMTAB_METRICS__TLS__CERTIFICATE
  value: /etc/trimtab/metrics-tls/tls.crt
- name: TRIMTAB_METRICS__TLS__KEY
  value: /etc/trimtab/metrics-tls/tls.key
{{- if $metrics.tls.verifyClients }}
- name: TRIMTAB_METRICS__TLS__CLIENT_CA
  value: /etc/trimtab/metrics-tls/client-ca.crt
{{- end }}
{{- end }}
{{- if and (ne $metrics.authentication "None") (ne (index . 1) "agent") }}
- name: TRIMTAB_METRICS__AUTHENTICATION
  value: {{ $metrics.authentication }}
{{- end }}
{{- end }}

{{/* A mount and a volume of a Secret with a certificate, if there is one. Argument: list of their name and the Secret's. */}}
{{- define "trimtab.certificateMount" -}}
{{- if index . 1 }}
- name: {{ index . 0 }}
  mountPath: /etc/trimtab/{{ index . 0 }}
  readOnly: true
{{- end }}
{{- end }}
{{- define "trimtab.certificateVolume" -}}
{{- if index . 1 }}
- name: {{ index . 0 }}
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* The mount and the volume of the settings' file, where there are some. */}}
{{- define "trimtab.settingsMount" -}}
{{- with .Values.settings }}
- name: settings
  mountPath: /etc/trimtab/settings
  readOnly: true
{{- end }}
{{- end }}
{{- define "trimtab.settingsVolume" -}}
{{- with .Values.settings }}
- name: settings
  configMap:
    name: trimtab-settings
{{- end }}
{{- end }}

{{/* The ConfigMap of the settings. Argument: list of root and namespace. */}}
{{- define "trimtab.settingsConfigMap" -}}
{{- $root := index . 0 -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: trimtab-settings
  namespace: {{ index . 1 }}
  labels:
    {{- include "trimtab.labels" (list $root "settings") | nindent 4 }}
data:
  settings.yaml: |
    {{- toYaml $root.Values.settings | nindent 4 }}
{{- end }}

{{/* What is chart-made, then what the user adds; a name that is in both is a mistake. Argument: list of component, YAML, extra. */}}
{{- define "trimtab.env" -}}
{{- $component := index . 0 -}}
{{- $ours := index . 1 -}}
{{- $taken := dict -}}
{{- range $ours | fromYamlArray }}{{ $_ := set $taken .name true }}{{ end -}}
{{- range index . 2 -}}
{{- if hasKey $taken .name -}}
{{- fail (printf "%s.extraEnv sets %s, which the chart sets itself: use the value that belongs to it (see values.yaml)" $component .name) -}}
{{- end -}}
{{- end -}}
{{ $ours }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Probes of our processes, all on the port `metrics`. Argument: list of path, period and failures of the start. */}}
{{- define "trimtab.probes" -}}
startupProbe:
  httpGet: { path: {{ index . 0 }}, port: metrics }
  periodSeconds: 2
  failureThreshold: {{ index . 1 }}
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: {{ index . 2 }}
  timeoutSeconds: 5
{{- end }}

{{/* A headless Service for scrapes and tests. Argument: list of root, component and namespace. */}}
{{- define "trimtab.metricsService" -}}
{{- $root := index . 0 -}}
apiVersion: v1
kind: Service
metadata:
  name: trimtab-{{ index . 1 }}-metrics
  namespace: {{ index . 2 }}
  labels:
    {{- include "trimtab.labels" (list $root (index . 1)) | nindent 4 }}
    metrics.trimtab.dev/scrape: "true"
spec:
  clusterIP: None
  publishNotReadyAddresses: true # a process that is not ready is one to hear of
  selector:
    {{- include "trimtab.selector" (index . 1) | nindent 4 }}
  ports:
    - name: metrics
      port: {{ include "trimtab.metricsPort" (index . 1) }}
      targetPort: metrics
{{- end }}

{{/* Version of the API server, without what a cloud adds: images of kube-scheduler are called like that. */}}
{{- define "trimtab.kubernetes" -}}
{{- regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{- end }}
