{{/* Environment of the console. */}}
{{- define "trimtab.webEnv" -}}
{{ include "trimtab.commonEnv" . }}
{{- with include "trimtab.metricsEnv" (list . "web") | trim }}{{ . | nindent 0 }}{{ end }}
- name: TRIMTAB_LEADERSHIP__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_MONITOR__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_POLICY__CONFIG_MAP__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_REPORTS__NAMESPACE
  value: {{ .Release.Namespace }}
- name: TRIMTAB_POLICY__NAME
  value: {{ .Values.policy.name }}
- name: TRIMTAB_POLICY__FALLBACK
  value: {{ .Values.policy.fallback }}
{{- if .Values.web.tls.secretName }}
- name: TRIMTAB_WEB__TLS__CERTIFICATE
  value: /etc/trimtab/web-tls/tls.crt
- name: TRIMTAB_WEB__TLS__KEY
  value: /etc/trimtab/web-tls/tls.key
{{- else }}
- name: TRIMTAB_WEB__INSECURE
  value: {{ .Values.web.insecure | quote }}
{{- end }}
{{- end }}
