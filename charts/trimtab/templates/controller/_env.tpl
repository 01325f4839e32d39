{{/* Environment of the controller. */}}
{{- define "trimtab.controllerEnv" -}}
{{- $weights := .Values.policy.weights -}}
{{ include "trimtab.commonEnv" . }}
{{- with include "trimtab.metricsEnv" (list . "controller") | trim }}{{ . | nindent 0 }}{{ end }}
- name: TRIMTAB_LEADERSHIP__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_MONITOR__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_POLICY__CONFIG_MAP__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_BINDING__MODE
  value: {{ .Values.binding.mode }}
{{- if eq .Values.binding.mode "Extender" }}
- name: TRIMTAB_BINDING__SCHEDULER_NAME
  value: {{ .Values.binding.schedulerName }}
- name: TRIMTAB_BINDING__TIMEOUT_SECONDS
  value: {{ .Values.binding.timeoutSeconds | quote }}
{{- end }}
- name: TRIMTAB_INTEROP__KUEUE
  value: {{ ternary "Auto" "Never" .Values.kueue.enabled }}
- name: TRIMTAB_INTEROP__OTHER_KINDS
  value: {{ ternary "Advise" "Never" .Values.otherKinds.advise }}
- name: TRIMTAB_INTEROP__PLACE
  value: {{ ternary "Labelled" "Never" .Values.otherKinds.place }}
- name: TRIMTAB_GANG__CHECK_REFERENCES
  value: {{ and .Values.checkReferences .Values.admission.enabled | quote }}
- name: TRIMTAB_REPORTS__ENABLED
  value: {{ .Values.reports.enabled | quote }}
{{- if .Values.reports.enabled }}
- name: TRIMTAB_REPORTS__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_REPORTS__PORT
  value: {{ .Values.reports.port | quote }}
- name: TRIMTAB_REPORTS__URL
  value: {{ ternary "https" "http" (ne .Values.reports.tls.secretName "") }}://trimtab-reports.{{ .Release.Namespace }}.svc:{{ .Values.reports.port }}
{{- if .Values.reports.tls.secretName }}
- name: TRIMTAB_REPORTS__TLS__CERTIFICATE
  value: /etc/trimtab/reports-tls/tls.crt
- name: TRIMTAB_REPORTS__TLS__KEY
  value: /etc/trimtab/reports-tls/tls.key
{{- with .Values.reports.tls.ca }}
- name: TRIMTAB_REPORTS__CA
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.fakeNodes.enabled }}
- name: TRIMTAB_FAKE__ENABLED
  value: "true"
- name: TRIMTAB_FAKE__SPEEDUP
  value: {{ .Values.fakeNodes.speedup | quote }}
{{- end }}
{{- if or $weights.image.reference $weights.configMap.name $weights.persistentVolumeClaim.name }}
- name: TRIMTAB_WEIGHTS
  value: /var/lib/trimtab/weights
{{- end }}
{{- end }}
